#!/bin/bash
# report.comment: the line in Slurm's comment of a job, behind the user's own, where the site allows it and it can be
# done; a job is none the worse where not.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
real_jobs
library_program job
mkdir -m 755 etc
printf '[report]\ncomment = yes\n' > etc/yes.conf
: > etc/none.conf
comment () { as root scontrol show job "$(submitted_last)" | sed -n 's/^ *Comment=\(.*\) $/\1/p'; } # it ends in a blank
submitted_last () { echo $(($(submitted) - 1)); }
# in_job CONF SRUN_ARG...: four ranks, two reducers' worth of steps
in_job () { GRADCOMP_CONF=$tmp/etc/$1 on srun --mpi=pmix -N4 -D "$tmp/run" "${@:2}" 2>&1; }
line='gradcomp: powersgd:rank=2, [0-9.]+ [kM]B sent instead of [0-9.]+ [kM]B, 5 steps'

check 'without the site'\''s leave' in_job none.conf --gradcomp=powersgd:rank=2 "$tmp/job" steps
is 'there is none' "$(comment)" ''
refuse 'nor by a user' env GRADCOMP_REPORT_COMMENT=yes "$tmp/bin/gradcomp" config --check
like 'as is said' "$said" 'report.comment can be set in gradcomp.conf only'
check 'with it' in_job yes.conf --gradcomp=powersgd:rank=2 "$tmp/job" steps
unlike 'nothing is told that went wrong' "$said" 'comment:'
check 'there is a line' grep -Eqx "$line" <<< "$(comment)" || note "$(comment)"
mine="mine: 'a' \"b\" \$c = %j; (null) Comment=x"
check 'with a comment of the user' in_job yes.conf --comment="$mine" --gradcomp=powersgd:rank=2 "$tmp/job" steps
now=$(comment)
is 'that stays' "${now%; gradcomp: *}" "$mine"
check 'and the line is behind it' grep -Eqx "$line" <<< "${now##*; }" || note "$now"
long=$(printf '%0980d' 0)
check 'with a long one' in_job yes.conf --comment="$long" --gradcomp=powersgd:rank=2 "$tmp/job" steps
like 'it is told' "$said" "no line in the job's comment: the job's comment has 980 bytes, and is left alone: it may have 1000"
is 'and left alone' "$(comment)" "$long"
check 'one rank' in_job yes.conf -N1 -n1 --gradcomp=powersgd:rank=2 "$tmp/job" steps
is 'leaves none' "$(comment)" ''
check 'no gradients' in_job yes.conf --gradcomp=none "$tmp/job" sums
is 'leave none' "$(comment)" ''
two=$(printf '%s\n' '#!/bin/bash' "for i in 1 2; do srun --mpi=pmix --gradcomp=powersgd:rank=2 $tmp/job steps; done")
printf '%s\n' "$two" > two.sh
chmod 755 two.sh
GRADCOMP_CONF=$tmp/etc/yes.conf check 'two steps' on sbatch -W -N4 -D "$tmp/run" -o "$tmp/run/two.out" "$tmp/two.sh"
check 'leave two lines' grep -Eqx "$line; $line" <<< "$(comment)" || note "$(comment; cat run/two.out)"
GRADCOMP_CONF=$tmp/etc/yes.conf check 'an array' on sbatch -W -N4 --array=1-2 --comment=ours -D "$tmp/run" -o "$tmp/run/array.%a" "$tmp/two.sh"
is 'each task its own' "$(as root scontrol show job "$(($(submitted_last) - 1))" | grep -cE "^ *Comment=ours; $line; $line \$")" 2 ||
	note "$(as root scontrol show job "$(($(submitted_last) - 1))" | grep Comment)"

# Commands that fail, hang, or say what nobody would store.
mkdir stubs
stub () { printf '#!/bin/sh\n%s\n' "$2" > "${tmp:?}/stubs/$1" && chmod -R 755 "$tmp/stubs"; }
with_stubs () { in_job yes.conf --gradcomp=powersgd:rank=2 env PATH="$tmp/stubs:$PATH" "$tmp/job" steps; }
stub scontrol 'echo "slurm_update error: Access/permission denied" >&2; exit 1'
check 'Slurm does not let the user' with_stubs
like 'it is told' "$said" "no line in the job's comment: scontrol: slurm_update error: Access/permission denied"
stub squeue 'exec sleep 300'
check 'a controller that is away' with_stubs
like 'it is told' "$said" "no line in the job's comment: squeue does not answer within 5 s"
stub squeue 'exec cat /dev/zero'
check 'a command that does not end to speak' with_stubs
like 'it is told' "$said" "no line in the job's comment: squeue says more than 1001 bytes"
# shellcheck disable=SC2329 # called by check
without () { in_job yes.conf --gradcomp=powersgd:rank=2 env PATH=/nowhere "$tmp/job" steps; }
check 'no such commands' without
like 'it is told' "$said" "no line in the job's comment: cannot run squeue: No such file or directory"
is 'ranks were right all the time' "$(grep -c '^rank . agrees on ' <<< "$said")" 4
all_idle 'every node is idle'
done_testing
