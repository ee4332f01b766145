#!/bin/bash
# A job of four nodes that goes on without ranks and nodes it has lost (srun --gradcomp-on-failure=shrink).
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
# shellcheck source=tests/cluster/shrink.sh
. "$GRADCOMP_SRC/tests/cluster/shrink.sh"
seed=${TEST_SEED:-$RANDOM}
real_jobs --conf UnkillableStepTimeout=20
library_program shrink
export GRADCOMP_LOG=error GRADCOMP_TRANSPORT_TIMEOUT GRADCOMP_TRANSPORT_WAIT_TIMEOUT
GRADCOMP_TRANSPORT_TIMEOUT=$(scaled 10) GRADCOMP_TRANSPORT_WAIT_TIMEOUT=$(scaled 60)

said_of_kill () { grep -c 'gradcomp: --gradcomp-on-failure=shrink: ' out; }

check 'nothing is lost: srun succeeds' train
judge
is 'nothing is lost: all are left' "$lost $left$problem" '0 8'
whole=$loss
# Memory that a rank has more than before it joined, KiB: the middle of eight.
kib () { sed 's/.* kib \([0-9]*\).*/\1/' run/end.* | sort -n | sed -n 4p; }
enduring=$(kib)
is 'srun has what it takes, and gives no advice' "$(said_of_kill)" 0
RANDOM=$seed
with=(dataset)
for k in {1..6}; do
	draw
	train "${fates[@]}"
	judge
	is "seed $seed, run $k, $drawn: those left train on with the same weights, and name the lost" "$problem" '' || note "$(tail -n +1 out run/end.* run/died.*)"
	check "run $k: the loss is that of all ranks: $loss of $whole" awk "BEGIN { exit !($loss < 2 * $whole + 1e-9) }"
	note "$lost lost, $left left, $given_up given up; $stall s without a step, agreed after $agreement s"
done
with=()
all_idle 'every node is idle'

GRADCOMP_MIN_RANKS=8 train 5:KILL:FIRST:0.2
is 'fewer than min_ranks are left: all end' "$(cat run/end.* | grep -c '7 ranks are left, gradcomp.min_ranks is 8: the job ends')" 7 || note "$(tail -n +1 out run/end.*)"

# Stopped, left out when the limit is reached, and told so when it comes back while the others work.
steps=3000 limit=$(scaled 100)
GRADCOMP_TRANSPORT_TIMEOUT=$(scaled 3) train 6:STOP:FIRST:0.2 &
run=$!
wait_for 80 test -e run/shrunk.0
for pid in $("${bed[@]}" node 4 ps -C shrink -o pid=); do "${bed[@]}" node 4 kill -CONT "$pid"; done
wait $run
steps=120
like 'a rank that was stopped is refused by name when it comes back' "$(cat run/end.6)" 'rank 6 on n4 was given up by the others' || note "$(tail -n +1 out run/end.*)"
is 'and the others have trained without it' "$(grep -l '^0 .* ranks 7 lost 6 ' run/end.* | wc -l)" 7

rm -f run/end.*
refuse 'one rank alone cannot shrink' on srun --mpi=pmix -n1 -D "$tmp/run" "${options[@]}" "$tmp/shrink" 10
like 'which it is told' "$(cat run/end.0)" ': gradcomp_job_shrink: nothing has failed'

# srun's command line says whether a lost node ends the step.
options=(--gradcomp=none --gradcomp-on-failure=shrink)
train
is 'without --no-kill srun gives advice' "$(said_of_kill)" 1 || note "$(cat out)"
options=(-k -K1 --gradcomp=none --gradcomp-on-failure=shrink)
train
is 'with --kill-on-bad-exit too' "$(said_of_kill)" 1 || note "$(cat out)"
export SLURM_NO_KILL=yes
options=(--gradcomp=none --gradcomp-on-failure=shrink)
train
is 'but not where the environment says it' "$(said_of_kill)" 0 || note "$(cat out)"
options=(--gradcomp=none)
unset SLURM_NO_KILL
train
is 'nor without the option' "$(said_of_kill)" 0 || note "$(cat out)"
judge
is 'a job that may not shrink trains as well' "$lost $left$problem" '0 8'
check "to be able to shrink takes less than 1 MiB a rank: $enduring KiB, $(kib) without" test "$enduring" -lt $(($(kib) + 1024))

# PyTorch: six ranks on four nodes, of which one is killed, and later both of a node.
if /usr/bin/python3 -c 'import torch.distributed' 2> /dev/null; then
	cp -r "$GRADCOMP_SRC/python" "$tmp"
	cp "$GRADCOMP_SRC/tests/python/shrinking.py" "$tmp/run"
	export PYTHONPATH=$tmp/python PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 GRADCOMP_LIBRARY=$tmp/lib/libgradcomp.so
	alone=$(RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29519 GRADCOMP=off timeout 100 /usr/bin/python3 "$tmp/run/shrinking.py" ddp 2> /dev/null | sed -n 's/^loss //p')
	# shellcheck disable=SC2016 # expanded over there
	on env MASTER_ADDR=n1 MASTER_PORT=29517 WORLD_SIZE=6 GLOO_SOCKET_IFNAME=eth0 SHRINK_KILL=5:3:backward,2:7:after,3:7:after \
		srun --mpi=pmix -N4 -n6 -D "$tmp/run" -o 'torch.%t' --no-kill --kill-on-bad-exit=0 --gradcomp=none --gradcomp-on-failure=shrink \
		sh -c 'RANK=$SLURM_PROCID exec /usr/bin/python3 shrinking.py ddp' > out 2>&1
	is 'PyTorch: a rank is lost, then a node: three are left, and numbered anew' "$(grep -h '^ranks ' run/torch.* | sort | paste -sd,)" 'ranks 0 3,ranks 1 3,ranks 2 3' ||
		note "$(tail -n +1 out run/torch.*)"
	is 'with the same weights' "$(grep -h '^weights ' run/torch.* | sort -u | wc -l)" 1
	# The two of the node are killed one by one, in step 7, and may be a step ahead of the others.
	raised=$(grep -h '^raised ' run/torch.* | sort -u)
	check "PeersLost is raised in the same steps: $raised" grep -qxE 'raised 3:5 ([67]:2\+3|[67]:[23] 7:2)' <<< "$raised"
	is '... of all that are left' "$(wc -l <<< "$raised")" 1
	loss=$(grep -h -m 1 '^loss ' run/torch.0) loss=${loss#loss }
	check "and the loss is that of one rank alone: $loss of $alone" awk "BEGIN { d = ${loss:-1} - ${alone:-0}; exit !(d < 1e-4 && d > -1e-4) }"
else
	skip 'PyTorch: a rank is lost, then a node' 'no PyTorch for /usr/bin/python3'
fi
all_idle 'every node is idle in the end'
done_testing
