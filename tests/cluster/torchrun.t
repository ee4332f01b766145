#!/bin/bash
# torchrun inside srun with PMIx: two nodes, a task each, two workers below each task. And ranks
# that another launcher has started below a task: they are told at once.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"

nodes=2
/usr/bin/python3 -c 'import torch.distributed.run' 2> /dev/null || skip_all 'no PyTorch for /usr/bin/python3'
real_jobs
cp -r "$GRADCOMP_SRC/python" "$tmp"
cp "$GRADCOMP_SRC/tests/python/elastic.py" "$tmp/run"
library_program job
export PYTHONPATH=$tmp/python PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 GRADCOMP_LIBRARY=$tmp/lib/libgradcomp.so
job () { on srun --mpi=pmix -D "$tmp/run" "$@" 2>&1; }

# torchrun asks for libuv from PyTorch 2.4 on, and cannot be told not to.
if /usr/bin/python3 -c 'import torch.distributed as d; d.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)' 2>&1 | grep -q libuv; then
	skip 'torchrun on two nodes' 'this PyTorch was built without the libuv that its torchrun asks for'
else
	# 1.13's default for what goes to files does not work on Python 3.11.
	check 'torchrun on two nodes' job -N2 --gradcomp=none /usr/bin/python3 -m torch.distributed.run --nnodes 2 \
		--nproc_per_node 2 --redirects 1 --tee 1 --log_dir "$tmp/run/log" --rdzv_backend c10d \
		--rdzv_endpoint n1:29411 --rdzv_id 7 "$tmp/run/elastic.py"
	is 'torchrun: a job of four' "$(grep -cE 'rank ([0-3]) of 4 is \1 of 4, 4 steps' <<< "$said")" 4
	is 'torchrun: one result' "$(sed -n 's/.*, digest //p' <<< "$said" | sort -u | wc -l)" 1
fi

began=$(date +%s)
# shellcheck disable=SC2016 # expanded over there
refuse 'four ranks below two tasks' job -N2 --gradcomp=none sh -c 'WORLD_SIZE=4 RANK=$SLURM_PROCID "$0" sums' "$tmp/job"
is 'both sizes are named' "$(grep -c 'of WORLD_SIZE=4, but the PMIx server has 2 ranks' <<< "$said")" 2
check 'at once' test $(($(date +%s) - began)) -lt "$(scaled 20)"
# shellcheck disable=SC2016 # as above
check 'the right size joins' job -N2 --gradcomp=none sh -c 'WORLD_SIZE=2 RANK=$SLURM_PROCID "$0" sums' "$tmp/job"

# A program that knows nothing of gradcomp, with what the plugin puts before PYTHONPATH and nothing else.
unset PYTHONPATH GRADCOMP_LIBRARY
cp "$GRADCOMP_SRC/tests/python/unmodified.py" "$tmp/run"
export MASTER_ADDR=n1 MASTER_PORT=29413 WORLD_SIZE=2 GLOO_SOCKET_IFNAME=eth0
# shellcheck disable=SC2016 # as above
unmodified () { job -N2 "$@" sh -c 'RANK=$SLURM_PROCID exec /usr/bin/python3 "$0"' "$tmp/run/unmodified.py"; }
check 'an unmodified program' unmodified --gradcomp=topk:density=0.1
like '... is attached' "$said" 'gradcomp: attached DistributedDataParallel(Sequential), 5403 parameters in 4 tensors: topk:density=0.1'
like '... and reduced by gradcomp' "$said" 'gradcomp: topk:density=0.1 on 2 ranks of 2 nodes: 4 steps'
check 'auto-attach=no' unmodified --gradcomp=topk:density=0.1 --gradcomp-auto-attach=no
is '... leaves it alone' "$(grep -c 'gradcomp: ' <<< "$said")" 0

all_idle 'every node is idle'
done_testing
