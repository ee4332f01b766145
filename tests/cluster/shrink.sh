# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # of common.sh, and for who sources this
# Runs of tests/cluster/shrink.c on four nodes, two ranks on each, for shrink.t, job.t and tests/soak/shrink.
#
#   train ARG...   one run; srun's options are in the array options, with=(dataset) has it read one
#   draw           random deaths for a run, from RANDOM: the array fates, and what is drawn in words in drawn
#   judge          of the run of draw: problem, empty when all is as it must be; lost, left, given_up (numbers of
#                  ranks), stall and agreement (seconds, of the slowest rank; 0: nothing failed)
steps=120
limit=100 # seconds
with=()
options=(--no-kill --kill-on-bad-exit=0 --gradcomp=none --gradcomp-on-failure=shrink)

train () {
	rm -f run/end.* run/died.* run/shrunk.*
	timeout "$limit" "${bed[@]}" run -u alice srun --mpi=pmix -N4 -n8 --ntasks-per-node=2 -D "$tmp/run" "${options[@]}" "$tmp/shrink" $steps "${with[@]}" "$@" > out 2>&1
}
any () { echo $((RANDOM % $1)); }
moment () { awk -v n=$RANDOM -v most="$1" 'BEGIN { printf "%.3f", n / 32768 * most }'; }

# At most three of eight are lost, so that those left are a majority whatever comes first.
draw () {
	local when first second
	when=$(moment 0.7) first=$(any 8)
	if [ "$(any 2)" = 0 ]; then
		first=$((first / 2 * 2))
		drawn="node n$((first / 2 + 1)) after $when s"
		fates=("$first:KILL:FIRST:$when" "$((first + 1)):KILL:FIRST:$when")
	else
		drawn="rank $first after $when s"
		fates=("$first:KILL:FIRST:$when")
	fi
	if [ "$(any 5)" = 0 ]; then
		second=$(((first / 2 * 2 + 2 + $(any 6)) % 8)) when=$(moment 0.05)
		drawn="$drawn, rank $second $when s into the recovery"
		fates+=("$second:KILL:SHRINK:$when")
	fi
}

# What every rank must have said: lines "RANK STATUS steps ...".
judge () {
	local r said
	for r in {0..7}; do
		said=$(cat "run/end.$r" 2> /dev/null)
		echo "$r ${said:-none} died $(cat "run/died.$r" 2> /dev/null)"
	done | awk -v steps=$steps -v fates="${fates[*]}" '
		BEGIN { n = split(fates, f, " "); for (i = 1; i <= n; i++) { split(f[i], p, ":"); victim[p[1]] = 1 } }
		{
			r = $1
			if ($NF != "died") { dead[r] = 1; ndead++; if (!first || $NF < first) first = $NF; next }
			if ($2 == "none") { bad = bad " rank " r " said nothing;"; next }
			if ($2 != 0 && / was given up by the others/) { away[r] = 1; naway++; next }
			if ($2 != 0) { bad = bad " rank " r " ended: " $0 ";"; next }
			if ($4 != steps) bad = bad " rank " r " has made " $4 " steps;"
			if (left++ && $8 != weights) bad = bad " rank " r " has other weights;"
			if ($6 > 1e-3) bad = bad " rank " r " ends with a loss of " $6 ";"
			weights = $8; loss = $6; names[r] = $12; told = $14
			if ($16 > agreed) agreed = $16
			if ($18 > stall) stall = $18
		}
		END {
			for (r in names) {
				n = split(names[r] == "-" ? "" : names[r], who, ",")
				delete named
				for (i = 1; i <= n; i++) {
					named[who[i]] = 1
					if (!(who[i] in dead) && !(who[i] in away)) bad = bad " rank " r " names " who[i] ", which lives;"
				}
				# Who died as the last step was done may not have been missed.
				for (d in dead) if (!(d in named) && agreed > 0) bad = bad " rank " r " does not name " d ";"
			}
			if (left < 4) bad = bad " " left + 0 " ranks are left;"
			printf "%d %d %d %.3f %.3f %s %s\n", ndead, left, naway, stall, (agreed > 0 && first ? agreed - first : 0), loss, bad
		}' > judged
	read -r lost left given_up stall agreement loss problem < judged || problem="nothing could be judged"
}
