#!/bin/bash
# A node whose slurmd has not the plugin, or another version of it: the step fails at once, and says where to look.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"

real_jobs
library_program job
version=$(cat "$GRADCOMP_SRC/VERSION")
line=$(cat "$state/etc/plugstack.conf.d/gradcomp.conf")
: > empty.conf
echo "${line/"$tmp/spank_gradcomp.so"/"$tmp/other.so"}" > other.conf
node_has () { # FILE: on node 3
	"${bed[@]}" node 3 mount --bind "$tmp/$1" "$state/etc/plugstack.conf.d/gradcomp.conf"
}
sums () { GRADCOMP_TRANSPORT_TIMEOUT=60 on srun --mpi=pmix -N4 -D "$tmp/run" "$@" "$tmp/job" sums 2>&1; }

node_has empty.conf
why="node n3: its slurmd has not the SPANK plugin of gradcomp $version, which srun has: name spank_gradcomp.so in plugstack.conf on n3"
began=$(date +%s)
sums --gradcomp=topk > out
check 'a node without the plugin: the step fails at once' test $(($(date +%s) - began)) -lt 50
is 'the others hear why' "$(grep -c "join: rank 2 cannot join: $why" out)" 3 || note "$(cat out)"
is 'and it says so itself' "$(grep -c "^rank . join: $why" out)" 1
like 'whatever is exported' "$(sums --gradcomp=none --export=LD_LIBRARY_PATH,GRADCOMP_PLUGIN_PATH)" "$why"
is 'a step without options needs no plugin' "$(sums | grep -c 'right$')" 4
refuse 'doctor is not content' on salloc -Q -N4 "$tmp/bin/gradcomp" doctor --records /var/tmp/gradcomp-records
like 'and names it' "$said" "n3: plugin of slurmd is not there, on n1 it is $version: on n3: name spank_gradcomp.so of gradcomp $version in plugstack.conf"

# Its tasks start without data; the others' stagers wait, and say for what.
mkdir -m 755 data && head -c 100000 /dev/urandom > data/part
timeout 100 "${bed[@]}" run -u alice srun --mpi=pmix -N4 -D "$tmp/run" --gradcomp=none --gradcomp-stage="$tmp/data" "$tmp/job" sums > out 2>&1 &
srun=$!
# shellcheck disable=SC2329 # called by wait_for
waits () { grep -q 'waiting for node 2 of n\[1-4\], counted from 0: .* plugstack.conf there$' out && grep -q "$why" out; }
wait_for 30 waits
tap_result $? 'a step that stages: it says which node it waits for, and why' || note "$(cat out)"
cancel_jobs
wait $srun
"${bed[@]}" node 3 umount "$state/etc/plugstack.conf.d/gradcomp.conf"

sed "s/\"$version\"/\"0.0.9\"/" "$GRADCOMP_BUILD/gradcomp_config.h" > gradcomp_config.h
# shellcheck disable=SC2046 # flags
if cc -shared -fPIC -std=gnu11 -D_GNU_SOURCE -include gradcomp_config.h -I"$GRADCOMP_SRC/include" -I"$GRADCOMP_SRC" \
	$(sed -n 's/^SLURM_CFLAGS = //p' "$GRADCOMP_BUILD/config.mk") -o other.so "$GRADCOMP_SRC"/spank/*.c 2> cc.log; then
	node_has other.conf
	like 'a node with another version' "$(sums --gradcomp=topk)" \
		"rank 2 cannot join: node n3: its slurmd has the SPANK plugin of gradcomp 0.0.9, srun has that of $version: install one version"
	"${bed[@]}" node 3 umount "$state/etc/plugstack.conf.d/gradcomp.conf"
else
	skip 'a node with another version' "no compiler or no spank.h: $(head -n 1 cc.log)"
fi

check 'all nodes with the plugin' sums --gradcomp=none
is 'nothing is left in the environment' "$(on srun -N4 --gradcomp=none env | grep -c SLURM_GRADCOMP)" 0
all_idle 'every node is idle'
done_testing
