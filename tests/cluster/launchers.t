#!/bin/bash
# One job of four ranks on two nodes, started as doc/user/launchers.md says: by srun, by mpirun of Open MPI and by prterun inside
# an allocation; mpirun on one machine without Slurm. torchrun has torchrun.t. MPICH's mpiexec has no PMIx: its ranks are told.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"

nodes=2
real_jobs
reduce=("$tmp/bin/gradcomp" bench reduce --tensors 64x64 --iters 2)
export GRADCOMP=topk:density=0.5

# four WHAT LAUNCHER...: it starts four ranks of two nodes, which are one job
four () {
	local what=$1
	shift
	check "$what" on "$@" "${reduce[@]}"
	like "$what: is one job" "$said" 'topk:density=0.5 on 4 ranks of 2 nodes'
}
# here LAUNCHER: as it is called, or that it is not installed
here () { command -v "$1.openmpi" || command -v "$1"; }

four srun srun --mpi=pmix -N2 -n4
if mpirun=$(here mpirun) && [[ $(on "$mpirun" --version 2>&1) = *'(Open'* ]]; then
	four 'mpirun in an allocation' salloc -N2 -n4 "$mpirun" -x GRADCOMP
	check 'mpirun on one machine' on "$mpirun" -n 3 --oversubscribe -x GRADCOMP "${reduce[@]}"
	like 'mpirun on one machine: is one job' "$said" 'topk:density=0.5 on 3 ranks of 1 node'
else
	skip 'mpirun' 'Open MPI is not installed'
fi
if prterun=$(here prterun); then
	four 'prterun in an allocation' salloc -N2 -n4 "$prterun" -x GRADCOMP
else
	skip 'prterun' 'PRRTE is not installed'
fi
if command -v mpiexec.mpich > /dev/null; then
	refuse "MPICH's mpiexec" on mpiexec.mpich -n 2 "${reduce[@]}"
	like "MPICH's mpiexec: ranks are told" "$said" 'this is rank 1 of 2, but nothing says where the others are'
else
	skip "MPICH's mpiexec" 'MPICH is not installed'
fi
all_idle 'every node is idle'
done_testing
