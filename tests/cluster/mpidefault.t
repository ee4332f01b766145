#!/bin/bash
# A site whose slurm.conf does not say MpiDefault=pmix: srun and gradcomp doctor say what to type, ranks that need PMIx fail at once, and
# those that do not work.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"

nodes=2
real_jobs --conf MpiDefault=none
library_program job
advice='gradcomp: these tasks have no PMIx (MpiDefault=none)'
sums () { on srun -N2 -D "$tmp/run" "$@" "$tmp/job" sums; }
# Nothing below waits for a limit of time, whichever a job has.
export GRADCOMP_TRANSPORT_TIMEOUT=100

began=$(date +%s)
refuse 'ranks that need PMIx' sums --gradcomp=none
lasted=$(($(date +%s) - began))
is '... every one says what to type' "$(grep -c 'join: this task is one of 2 of a Slurm step, but srun gave it no PMIx: type srun --mpi=pmix' <<< "$said")" 2
is '... and srun, once' "$(grep -Fc "$advice" <<< "$said")" 1 || note "$said"
like '... before that' "$(head -n 1 <<< "$said")" "$advice"
like '... both ways' "$said" 'type srun --mpi=pmix, or --mpi=none if that is meant'
check '... nobody waits' test $lasted -lt "$(scaled 30)"

# quiet NAME COMMAND...: srun gives no advice
quiet () {
	check "$1" "${@:2}"
	unlike "... srun says nothing" "$said" "$advice"
}
quiet '--mpi=pmix' sums --mpi=pmix --gradcomp=none
quiet '--mpi pmix behind it' on srun --gradcomp none -N2 --mpi pmix -D "$tmp/run" "$tmp/job" sums
SLURM_MPI_TYPE=pmix quiet 'SLURM_MPI_TYPE=pmix' sums --gradcomp=none
quiet '--mpi=none' on srun -N2 --mpi=none --gradcomp=none true
quiet 'one rank' on srun -n1 -D "$tmp/run" --gradcomp=none "$tmp/job" sums
quiet 'no ranks' on srun -N2 --gradcomp=off true
quiet 'no option' on srun -N2 true
mkdir -m 777 out
quiet 'an option of sbatch' on sbatch --wait -N2 -o "$tmp/out/batch" -D "$tmp/run" --gradcomp=none --wrap 'srun true'
unlike '... nor does its srun' "$(cat out/batch)" "$advice"

if /usr/bin/python3 -c 'import torch' 2> /dev/null; then
	cp "$GRADCOMP_SRC/tests/python/unmodified.py" "$tmp/run"
	export MASTER_ADDR=n1 MASTER_PORT=29413 WORLD_SIZE=2 GLOO_SOCKET_IFNAME=eth0
	# shellcheck disable=SC2016 # expanded by the task
	check 'ranks that PyTorch brings together' on srun -N2 -D "$tmp/run" --gradcomp=topk:density=0.1 \
		sh -c 'RANK=$SLURM_PROCID exec /usr/bin/python3 "$0"' "$tmp/run/unmodified.py"
	like '... are reduced by gradcomp' "$said" 'gradcomp: topk:density=0.1 on 2 ranks of 2 nodes: 4 steps'
	is '... on all of them' "$(grep -c '^ours True True$' <<< "$said")" 2
else
	skip 'ranks that PyTorch brings together' 'no PyTorch for /usr/bin/python3'
fi

doctor () { on "$@" salloc -Q -N2 "$tmp/bin/gradcomp" doctor --records /var/tmp/gradcomp-records; }
check 'doctor is content' doctor env
like '... and names it' "$said" 'ranks need srun --mpi=pmix, for MpiDefault=none: MpiDefault=pmix in slurm.conf spares users that'
unlike '... unless the environment says it' "$(doctor env SLURM_MPI_TYPE=pmix)" 'ranks need srun'
all_idle 'every node is idle'
done_testing
