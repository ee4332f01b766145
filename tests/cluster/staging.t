#!/bin/bash
# --gradcomp-stage in the plugin: who copies, when, as whom, and what a failure does.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
start_cluster --nodes "$nodes" --conf UnkillableStepTimeout=20
plugin optional
mkdir -m 777 data endless confused properties out
export GRADCOMP_TEST_LOG=$tmp/log
submitted_last () { echo $(($(submitted) - 1)); }
stage_log () { sort "$tmp/log"; : > "$tmp/log"; }
: > log
chmod 666 log

check '3 tasks on each of two nodes' on srun '-wn[1-2]' -n6 --gradcomp-stage="$tmp/data" printenv GRADCOMP_DATA
is 'every task is told where the copy is' "$(grep -c "^/copy/of$tmp/data$" <<< "$said")" 6
is 'one progress line, of the first node' "$(grep '^gradcomp: ' <<< "$said")" 'gradcomp: n1: staged data'
is 'one copy a node, as the user' "$(stage_log)" "n1 alice $tmp/data
n2 alice $tmp/data"
is 'only staging: no compressor is set' "$(on srun -n1 --gradcomp-stage="$tmp/data" printenv GRADCOMP 2>/dev/null)" ""
stage_log > /dev/null
check 'a relative directory is in the working directory' on srun -wn1 -D "$tmp" --gradcomp-stage=data true
is 'and passed on as it is' "$(stage_log)" "n1 alice data"
on srun -wn1 --gradcomp-stage="$tmp/data" touch "$tmp/out/ran" 2> /dev/null
check 'a task runs after it' test -e out/ran
stage_log > /dev/null
check 'none' on srun -wn1 --gradcomp-stage=none true
is 'none stages nothing' "$(stage_log)" ""

# shellcheck disable=SC2016 # expanded by the job
check 'sbatch' on sbatch --wait -wn3 -o "$state/home/alice/out" --gradcomp-stage="$tmp/data" \
	--wrap 'echo "${GRADCOMP_DATA-nothing}"; srun -n1 printenv GRADCOMP_DATA
		srun -n1 --gradcomp-stage=none printenv GRADCOMP_DATA; true'
is 'sbatch: for its sruns, not for the script' "$(sed '/^gradcomp: /d; /^srun: /d' "$state/home/alice/out")" "nothing
/copy/of$tmp/data"
is 'sbatch: staged by the one srun that did not decline' "$(stage_log)" "n3 alice $tmp/data"

GRADCOMP_SECTION_KEY=1 LD_PRELOAD='' SECRET=1 check 'the child' on srun -wn1 --gradcomp-stage="$tmp/properties" true
properties=$(cat properties/properties.n1)
uid=$(as alice id -u)
like 'the child is the user' "$properties" "Uid:	$uid	$uid	$uid	$uid"
like 'the child has the group of the user' "$properties" "Gid:	$uid	$uid	$uid	$uid"
is 'the child has no other group' "$(sed -n 's/^Groups:[ \t]*//p' <<< "$properties" | tr -d ' ')" "$uid"
like 'the child has no capability' "$properties" 'CapEff:	0000000000000000'
like 'the child can gain no privilege' "$properties" 'NoNewPrivs:	1'
is 'the child has the standard files open only' "$(grep -c ' [0-9]* -> ' <<< "$properties")" 4
like 'the child has the settings of the user' "$properties" 'GRADCOMP_SECTION_KEY=1'
unlike 'the child has nothing else of its environment' "$properties" 'SECRET=1'
like 'the copies are held by the slurmstepd' "$properties" 'held by slurmstepd: '
like 'in the name of the job and step' "$properties" " for job $(submitted_last).0"

from=$(submitted)
refuse 'a wrong SPEC' on srun -wn1 --gradcomp-stage="$tmp/data:mode=wrong" true
is 'a wrong SPEC: is named' "$said" 'srun: error: gradcomp: mode=wrong: it can be full, shard or link'
refuse 'a wrong SPEC for sbatch' on sbatch --gradcomp-stage="$tmp/data:mode=wrong" --wrap true
refuse 'a wrong SPEC for salloc' on salloc --gradcomp-stage="$tmp/data:mode=wrong" true
check 'help' on srun --gradcomp-stage=help
is 'help is about this option' "$said" 'how to write a SPEC of sources'
is 'nothing was submitted for them' "$(submitted)" "$from"

# On a terminal each line of progress, and the last word, take the place of the one above.
if command -v script > /dev/null; then
	mkdir -m 755 live
	cat > terminal <<-END
		stty cols 90
		exec ${bed[*]} run -u alice timeout 60 srun '-wn[1-2]' -n2 --gradcomp-stage=$tmp/live true
	END
	is 'progress on a terminal' "$(script -qec "bash $tmp/terminal" /dev/null < /dev/null | tr -d '\r' | cat -v)" \
		"gradcomp: n1: 1 of 2 in 86 columns
^[[A^[[2Kgradcomp: n1: 2 of 2
^[[A^[[2Kgradcomp: n1: staged live"
else
	skip 'progress on a terminal' 'needs script'
fi

# failed NAME WORDS SRUN_ARG...: the step ends with 1, no task ran, the reason is shown
failed () {
	rm -f out/ran
	shown=$(on srun "${@:3}" touch "$tmp/out/ran" 2>&1)
	is "$1: exit status" $? 1
	like "$1: the reason" "$shown" "$2"
	check "$1: no task ran" test ! -e out/ran
}
for mode in optional required; do
	plugin $mode
	failed "$mode, no such directory" "gradcomp: error: n1: --gradcomp-stage=$tmp/no failed: $tmp/stand-in ended with status 1" \
		'-wn[1-2]' -n4 --gradcomp-stage="$tmp/no"
	like "$mode, no such directory: what the command said, on each node" "$shown" "gradcomp: n2: no directory '$tmp/no'"
	failed "$mode, no path printed" 'printed no path of a copy' -wn1 --gradcomp-stage="$tmp/confused"
	all_idle "$mode: every node is idle"
done
sed -i "s|helper=[^ ]*|helper=$tmp/missing|" "$state/etc/plugstack.conf.d/gradcomp.conf"
failed 'no command' "cannot run $tmp/missing: No such file" -wn1 --gradcomp-stage="$tmp/data"
plugin required stage_timeout=1
failed 'too slow' 'did not end within 1 s and was stopped' -wn1 --gradcomp-stage="$tmp/endless"
plugin required
mkdir -m 777 "$state/n1/tmp/here"
on srun '-wn[1-2]' --kill-on-bad-exit --gradcomp-stage=/tmp/here sleep 30 > srun.out 2>&1
check 'on one node of two: srun fails' test $? -gt 0
like 'on one node of two: the reason' "$(cat srun.out)" "gradcomp: n2: no directory '/tmp/here'"

# The command dies in the middle of it, on one node of two.
rm -f endless/pids out/ran
"${bed[@]}" run -u alice srun '-wn[1-2]' -n4 --kill-on-bad-exit --gradcomp-stage="$tmp/endless" touch "$tmp/out/ran" > srun.out 2>&1 &
srun=$!
for _ in {1..300}; do
	[ "$(wc -l 2>/dev/null < endless/pids)" = 2 ] && break
	sleep 0.1
done
for pid in $("${bed[@]}" node 1 ps -C sleep -o pid=,args= | awk '/sleep 600/ { print $1 }'); do
	"${bed[@]}" node 1 kill -KILL "$pid"
done
wait $srun
check 'killed while it copies: srun fails' test $? -gt 0
like 'killed while it copies: the reason' "$(cat srun.out)" 'gradcomp: error: n1: --gradcomp-stage='
check 'killed while it copies: no task ran' test ! -e out/ran
all_idle 'killed while it copies: every node is idle'

# Cancelled while it copies: gone at once, and the nodes with it.
for how in scancel interrupt; do
	rm -f endless/pids out/ran
	began=$(date +%s)
	"${bed[@]}" run -u alice srun '-wn[1-2]' -n4 --gradcomp-stage="$tmp/endless" touch "$tmp/out/ran" > srun.out 2>&1 &
	srun=$!
	for _ in {1..300}; do
		[ "$(wc -l 2>/dev/null < endless/pids)" = 2 ] && break
		sleep 0.1
	done
	case $how in
	scancel) cancel_jobs ;;
	interrupt) kill -TERM $srun ;;
	esac
	wait $srun
	check "$how: srun fails" test $? -gt 0
	check "$how: in time" test $(($(date +%s) - began)) -lt "$(scaled 50)"
	for _ in {1..50}; do
		copying=$(for k in 1 2; do "${bed[@]}" node $k ps -C sleep -o args= ; done | grep -c 'sleep 600')
		[ "$copying" = 0 ] && break
		sleep 0.1
	done
	is "$how: no copying goes on" "$copying" 0
	check "$how: no task ran" test ! -e out/ran
	all_idle "$how: every node is idle"
done
done_testing
