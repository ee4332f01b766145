#!/bin/bash
# Programs of Open MPI and MPICH that know nothing of gradcomp, with its library below them: what the policy names is
# coded, within the bound of the code and with the same bits on all ranks; all else is MPI's to the bit; a rank that is
# killed is named; a policy that cannot be is refused in MPI_Init.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"

mpis=
for mpi in openmpi mpich; do
	[ ! -e "$GRADCOMP_BUILD/lib/gradcomp/pmpi/$mpi.so" ] || ! command -v mpicc.$mpi > /dev/null || mpis="$mpis $mpi"
done
[ -n "$mpis" ] || skip_all 'neither Open MPI nor MPICH is installed'
nodes=2
real_jobs
export OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1

build () { "mpicc.$mpi" -std=gnu11 -O2 -Wall -o "$tmp/run/$mpi$1" "${@:2}" "$GRADCOMP_SRC/tests/cluster/pmpi.c" -lm -lpthread; }
# ranks ARG...: three of them on the login node, of the program, with the library.
program=()
ranks () {
	case $mpi in
	openmpi) on mpirun.openmpi -n 3 -x LD_PRELOAD="$below" "${program[@]}" "$@" ;;
	mpich) on mpiexec.mpich -n 3 -genv LD_PRELOAD "$below" "${program[@]}" "$@" ;;
	esac
}
cat > run/two-minds << 'END'
#!/bin/sh
[ "${PMI_RANK-$OMPI_COMM_WORLD_RANK}" != 2 ] || export GRADCOMP=fp8
exec "$@"
END
# A launcher that loses a rank ends the others, and what they say is lost. So it loses none before two have said it.
cat > run/to-file << 'END'
#!/bin/sh
"$@" >> "$0.words" 2>&1
status=$? n=0
while [ $status = 137 ] && [ "$(grep -c 'was told' "$0.words")" -lt 2 ] && [ $n -lt 300 ]; do
	sleep 0.1
	n=$((n + 1))
done
exit $status
END
chmod 755 run/two-minds run/to-file
cat > opens.c << 'END'
#include <dlfcn.h>
int main(int argc, char **argv)
{
	void *program = dlopen(argv[1], RTLD_NOW);
	return program ? ((int (*)(int, char **))dlsym(program, "main"))(argc - 1, argv + 1) : 127;
}
END
check 'a program that opens others' cc -o run/opens opens.c -ldl
# names KIND: the cases that ended so, of 26, with threads 28
names () { sed -n "s/: $1\$//p" <<< "$said" | sort; }
# With which the list of those that are coded begins: those of MPI_COMM_WORLD and its copies.
coded='allgather
allgather in place
allreduce
allreduce behind a message
allreduce by a thread
allreduce by another
allreduce in place
allreduce of a copy
allreduce of Fortran'\''s numbers
allreduce of some
iallreduce
iallreduce in place
iallreduce into the memory of one rank'\''s GPU
iallreduce out of the memory of two
reduce_scatter
reduce_scatter_block
reduce_scatter_block in place
reduce_scatter in place
reduce_scatter in place on some'

for mpi in $mpis; do
	below=$tmp/lib/gradcomp/pmpi/$mpi.so program=("$tmp/run/$mpi")
	check "$mpi: a program" build '' -rdynamic
	check "$mpi: one that opens MPI itself, as Python does" build .so -shared -fPIC
	is "$mpi: the library harms nobody else" "$(LD_PRELOAD=$below env echo fine 2>&1)" fine

	unset GRADCOMP
	check "$mpi, no policy" ranks cases threads
	is '... all is MPI'\''s' "$(names exact | wc -l)" 28 || note "$said"
	export GRADCOMP=none
	check "$mpi, none" ranks cases
	is '... all is MPI'\''s' "$(names exact | wc -l)" 26 || note "$said"
	export GRADCOMP=any.4/lossless
	program=("$tmp/run/opens" "$tmp/run/$mpi.so")
	check "$mpi, lossless, opened by the program" ranks cases
	program=("$tmp/run/$mpi")
	is '... nothing is lost' "$(names exact | wc -l)" 26 || note "$said"
	like '... of numbers that it has sent' "$said" "gradcomp: coder 'MPI_COMM_WORLD' lossless on 3 ranks:"
	export GRADCOMP=@weights/block:bits=8+dp/block:bits=8
	check "$mpi, eight bits" ranks cases threads
	is '... for what the policy names' "$(names within)" "$(sort <<< "$coded")" || note "$said"
	is '... no other' "$(names exact | wc -l)" 9
	is '... and with the same bits everywhere' "$(grep -c UNEQUAL <<< "$said")" 0
	like '... in a quarter of the bytes' "$said" 'block:bits=8 on 3 ranks: 1 reduce-scatter, 1 all-gather, 3.9x fewer bytes' || note "$said"

	if command -v gfortran > /dev/null && check "$mpi: a program in Fortran" "mpif90.$mpi" -w -fallow-argument-mismatch -o "$tmp/run/$mpi.f" \
		"$GRADCOMP_SRC/tests/cluster/pmpi.f90"; then
		program=("$tmp/run/$mpi.f")
		check '... runs' ranks
		is '... and is coded' "$(names within)" fortran || note "$said"
		program=("$tmp/run/$mpi")
	else
		skip "$mpi: a program in Fortran" 'gfortran is not installed'
	fi

	rm -f "$tmp/run/to-file.words"
	program=("$tmp/run/to-file" "$tmp/run/$mpi")
	ranks kill > kill.log 2>&1
	status=$? program=("$tmp/run/$mpi")
	killed=$(cat "$tmp/run/to-file.words")
	check "$mpi: a rank is killed, and the others end" test $status != 124
	like '... its name is told' "$killed" 'gradcomp: MPI_Allreduce on MPI_COMM_WORLD: rank 1 on '
	like "... and is MPI's error" "$killed" 'was told: gradcomp: rank 1 on '

	export GRADCOMP=dp.all_reduce/powersgd:rank=4
	refuse "$mpi: what keeps state" ranks cases
	like '... is refused' "$said" "gradcomp: rank 0: an MPI program's calls cannot be compressed by 'powersgd:rank=4': 'powersgd' works on matrices"
	export GRADCOMP=dp/blok:bits=8
	refuse "$mpi: a policy that is none" ranks cases
	like '... is refused' "$said" "gradcomp: rank 0: "
	like '... with what is wrong' "$said" blok
	export GRADCOMP=block:bits=8
	program=("$tmp/run/two-minds" "$tmp/run/$mpi")
	refuse "$mpi: ranks of two minds" ranks cases
	like '... are told' "$said" "gradcomp: rank 2: GRADCOMP is 'fp8' here, and rank 0 has another policy"
	unset GRADCOMP
done

case $mpis in
*openmpi*mpich*)
	refuse 'a program of another MPI' on env "LD_PRELOAD=$tmp/lib/gradcomp/pmpi/openmpi.so" "$tmp/run/mpich" cases
	like '... is told' "$said" "gradcomp: the program's MPI is not Open MPI, which this library is for"
	;;
esac

# Two nodes of Slurm.
case $mpis in
*openmpi*)
	check 'srun --gradcomp' on srun --mpi=pmix -N2 -n3 --gradcomp=block:bits=8 \
		"--export=ALL,LD_PRELOAD=$tmp/lib/gradcomp/pmpi/openmpi.so" "$tmp/run/openmpi" cases
	is '... codes' "$(names within | wc -l)" 12 || note "$said"
	is '... as it should' "$(grep -cE 'WRONG|UNEQUAL' <<< "$said")" 0
	;;
*) skip 'srun --gradcomp' 'Open MPI is not installed' ;;
esac
all_idle 'every node is idle'
done_testing
