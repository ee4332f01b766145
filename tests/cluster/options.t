#!/bin/bash
# What a user may get wrong is refused by srun, sbatch and salloc themselves.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
start_cluster --nodes "$nodes"
printf '#!/bin/bash\nsleep 60\n' > job.sh

for mode in required optional; do
	plugin $mode
	before=$(submitted)
	for command in 'srun -n1 %s true' 'sbatch %s job.sh' 'salloc %s true'; do
		how="$mode, ${command%% *}"
		# with PATTERN OPTION...: refused by the command, with PATTERN in what it says
		with () {
			local pattern=$1 word words=()
			shift
			for word in $command; do
				if [ "$word" = %s ]; then words+=("$@"); else words+=("$word"); fi
			done
			refuse "$how: refused: $(printf %.60s "$*" | tr -d "\n")" on "${words[@]}"
			like "$how: says what is wrong" "$said" "gradcomp: $pattern"
		}
		with "no compressor 'nope'" --gradcomp=nope
		like "$how: lists what there is" "$said" 'gradcomp: there are: none, topk, powersgd'
		with "no compressor 'topk:densty=1'" --gradcomp=topk:densty=1
		with 'powersgd does not work with tree' --gradcomp=powersgd --gradcomp-collective=tree
		with 'powersgd does not work with tree' --gradcomp-collective=tree --gradcomp=powersgd
		with '--gradcomp needs a value' --gradcomp=
		with "--gradcomp has a '#'" '--gradcomp=topk#'
		with '--gradcomp has a control character' "--gradcomp=topk$(printf '\n')
x"
		with '--gradcomp-report has a value of more than' "--gradcomp-report=/$(printf 'x%.0s' {1..5000})"
		with '--gradcomp-stage needs a value' --gradcomp-stage=
		with '--gradcomp-schedule needs a value' --gradcomp-schedule=
		with '--gradcomp-record has a control character' "--gradcomp-record=$(printf '\t')"
		with "no compressor 'a b\"c\$(id)'" "--gradcomp=a b\"c\$(id)"
		with "no compressor 'größe✓'" --gradcomp=größe✓
		with "no compressor '--report'" --gradcomp=--report
		with "$tmp/stand-in was killed by signal 11" --gradcomp=crash
	done
	unset -f with
	refuse "$mode, srun: a collective alone is refused" on srun -n1 --gradcomp-collective=ring true
	like "$mode, srun: and says what goes with it" "$said" '--gradcomp-collective does nothing without --gradcomp'
	refuse "$mode, srun: a schedule alone is refused" on srun -n1 --gradcomp-schedule=single true
	like "$mode, srun: and says what goes with it too" "$said" '--gradcomp-schedule does nothing without --gradcomp'
	refuse "$mode: a helper that refuses without a word" on srun -n1 --gradcomp=silent true
	like "$mode: is named" "$said" "gradcomp: $tmp/stand-in check"
	refuse "$mode, srun: on-failure alone is refused" on srun -n1 --gradcomp-on-failure=shrink true
	refuse "$mode, srun: auto-attach alone is refused" on srun -n1 --gradcomp-auto-attach=no true
	is "$mode: nothing was submitted" "$(submitted)" "$before"
	is "$mode: nothing is queued" "$(as root squeue -h)" ""

	for command in srun 'sbatch job.sh' salloc; do
		# shellcheck disable=SC2086 # sbatch wants a script before it looks at options
		check "$mode, $command: help" on ${command% *} --gradcomp=help ${command#"${command% *}"}
		is "$mode, $command: help shows what there is" "$said" 'compressors: none, topk, powersgd'
	done
	is "$mode: help submits nothing" "$(submitted)" "$before"

	check "$mode: an #SBATCH line is checked" sh -c 'printf "#!/bin/sh\n#SBATCH --gradcomp=nope\n" > bad.sh'
	refuse "$mode: and refused" on sbatch bad.sh
	like "$mode: with the reason" "$said" "gradcomp: no compressor 'nope'"
	is "$mode: nothing came of it" "$(submitted)" "$before"
	all_idle "$mode: every node is idle"
done

check 'srun --help names the options' on srun --help
like 'with what they take' "$said" '--gradcomp=SPEC|none|off|help'
# words: of what comes, however the lines are broken; up to the next heading
words () { sed -n '/--gradcomp=SPEC/,/^[A-Z|]/p' | grep -v '^[A-Z|]' | tr -s ' \n' ' '; }
is 'the README has them as they are printed' "$(words < "$GRADCOMP_SRC/README.md")" "$(words <<< "$said")"
done_testing
