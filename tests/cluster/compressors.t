#!/bin/bash
# Every compressor of this build trains under srun, four ranks on two nodes: it needs
# nothing but its name, the ranks end with the same bits, and the loss falls.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"

nodes=2
real_jobs
library_program train
# train SPEC [ARG...]: what the ranks say goes to $heard, the closing line to $closing
train () {
	heard=$(on srun --mpi=pmix -N2 -n4 -D "$tmp/run" "--gradcomp=$1" "$tmp/train" "${@:2}" 2>&1)
	status=$?
	closing=$(grep '^gradcomp: .* steps*, ' <<< "$heard")
}
# learns NAME: four ranks, one result, less than half of the loss
learns () {
	check "$1: the job ends well" test $status = 0
	is "$1: one result" "$(sed -n 's/^rank [0-3] agrees on \([0-9a-f]*\),.*/\1/p' <<< "$heard" | sort | uniq -c | awk '{ print $1 }')" 4
	check "$1: the loss falls:$(sed -n 's/^rank 0.*, loss/ loss/p' <<< "$heard")" test \
		"$(sed -n 's/^rank 0.*, loss \([0-9.]*\) to \([0-9.]*\)$/\1 \2/p' <<< "$heard" | awk '{ print $2 < $1 / 2 }')" = 1
	note "${closing:-$heard}"
}
for compressor in $(GRADCOMP_PLUGIN_PATH=$tmp/lib/gradcomp "$GRADCOMP_BUILD/bin/gradcomp" list --pairs |
	sed -n '/^| compressor/,$p' | sed '1,2d' | cut -d' ' -f2); do
	case $compressor in
	threshold) spec=threshold:t=0.5 ;; # its default is for gradients of another size
	*) spec=$compressor ;;
	esac
	rate=0.002
	[ "$compressor" != dion ] || rate=0.008 # updates that do not grow with the gradient
	train "$spec" 800 "$rate"
	learns "$spec"
	case $closing in *', '[0-9]*x\ fewer\ bytes*) fewer="$fewer $compressor" ;; esac
done
note "fewer bytes:$fewer"

# The example of coders. A sharded program sends what the table of doc/user/coder.md says.
check 'sharded.c is compiled' cc -std=gnu11 -O2 -Wall -Werror -o sharded "$GRADCOMP_SRC/examples/c/sharded.c" -I"$GRADCOMP_SRC/include" \
	-L"$tmp/lib" -lgradcomp -lm
said=$(on srun --mpi=pmix -N2 -n4 -D "$tmp/run" --gradcomp=none "$tmp/sharded" 60 2>&1)
like 'sharded: it trains' "$said" '60 steps on 4 ranks: weights are 0.00'
like 'sharded: gathers send a quarter of their bytes, reductions an eighth' "$said" 'gathers sent 0.26 of their bytes, reductions 0.13'

# What cannot be is refused by srun itself, with what would do.
refuse 'a collective that does not merge' on srun --mpi=pmix -N2 -n4 --gradcomp=gtopk --gradcomp-collective=ring "$tmp/train"
merging='auto, tree'
[ ! -e "$tmp/lib/gradcomp/collectives/nccl.so" ] || merging='auto, nccl, tree'
like 'is refused with what would' "$said" "which collective 'ring' does not have; collectives that serve it: $merging"
check 'a report' on srun --mpi=pmix -N2 -n4 -D "$tmp/run" --gradcomp=gtopk --gradcomp-report=r.json "$tmp/train" 20
check 'a report: has the collective that was found' grep -q '"collective": *"auto' run/r.json
check 'a report: has the share held back' grep -q '"error_mean": *[01]\.[0-9]' run/r.json
all_idle 'every node is idle'
done_testing
