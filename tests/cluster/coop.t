#!/bin/bash
# gradcomp stage --pmix: the ranks of a step stage together without the plugin.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
real_jobs
export PATH=$tmp/bin:$PATH GRADCOMP_STAGE_CACHE_DIR=/tmp/cache
# As the plugin does for the jobs it serves: Slurm 22.05's PMIx servers may refuse each other otherwise.
export SLURM_PMIX_DIRECT_CONN=false

mkdir data
cp -r "$GRADCOMP_SRC/include" data
head -c 5000000 /dev/urandom > data/large
ln -s include/gradcomp data/short
# shellcheck disable=SC2094 # find leaves it out
(cd data && find . -type f ! -name SUMS -exec sha256sum {} + > SUMS)
chmod -R a+rX data
files=$(find data -type f | wc -l)
area=/tmp/cache-$(on id -u)
# shellcheck disable=SC2317,SC2329 # by check and refuse
together () { on srun -N4 --mpi=pmix --kill-on-bad-exit=0 "$@"; }
# What each node has: one copy, whole.
whole () {
	for ((k = 1; k <= nodes; k++)); do
		"${bed[@]}" node $k sh -c "cd $area/*/data && sha256sum --quiet -c SUMS && [ -L short ] && echo whole"
	done 2>&1
}

check 'a rank on each of 4 nodes' together -n4 gradcomp stage --pmix "$tmp/data"
is 'each says where its copy is' "$(grep -cE "^$area/[0-9a-f]{64}/data$" <<< "$said")" 4 || note "$said"
is 'which is the same path' "$(grep "^$area" <<< "$said" | sort -u | wc -l)" 1
is 'and whole' "$(whole | sort | uniq -c | tr -s ' ')" ' 4 whole'
check 'two ranks a node' together -n8 gradcomp stage --pmix "$tmp/data"
is 'find it' "$(grep -c "^$area/" <<< "$said")" 8
like 'and say so' "$said" "using cached copy of $tmp/data ($files files"

"${bed[@]}" node 2 rm -rf "$area"
"${bed[@]}" node 3 rm -rf "$area"
check 'when two nodes have lost theirs' together -n4 gradcomp stage --pmix --verify "$tmp/data"
is 'they get it from the others' "$(whole | sort | uniq -c | tr -s ' ')" ' 4 whole'

check 'shards' together -n4 gradcomp stage --pmix "$tmp/data:mode=shard"
is 'have a path on each node' "$(grep "^$area" <<< "$said" | sort -u | wc -l)" 4
for ((k = 1; k <= nodes; k++)); do
	"${bed[@]}" node $k sh -c "cd $area && grep -hF 'source shard\\x20$((k - 1))/4' */manifest"
done > shards 2>&1
is 'each node knows which it is' "$(grep -c '^source' shards)" 4 || note "$(cat shards)"
is 'together they have all files' \
	"$(for ((k = 1; k <= nodes; k++)); do "${bed[@]}" node $k sh -c "cd $area/\$(cd $area && grep -l '^source shard' */manifest | head -1 | cut -d/ -f1)/data && find . -type f"; done | sort -u | wc -l)" "$files"

chmod 600 data/large
refuse 'a file that the user cannot read' together -n4 gradcomp stage --pmix "$tmp/data"
is 'fails on all nodes' "$(grep -c 'cannot read large: Permission denied' <<< "$said")" 4 || note "$said"
# A node that cannot read it either may have heard of another before.
check 'and three of them know which node it was' test "$(grep -c 'node [0-3] (n[1-4]): cannot read' <<< "$said")" -ge 3
mkdir beside
echo followed > beside/file
ln -s ../beside/file data/out
mkfifo data/pipe
chmod -R a+rX beside
check 'unless it is left out, as a FIFO is, and a link followed' together -n4 gradcomp stage --pmix "$tmp/data:unreadable=skip,exclude=pipe,links=follow"
for ((k = 1; k <= nodes; k++)); do
	"${bed[@]}" node $k sh -c "cd $area && cat */left-out */data/out */data/short/abi.h | grep -xE 'excluded pipe|unreadable large|followed|#define GRADCOMP_ABI_H' | sort -u | tr '\\n' ' '"
done > left 2>&1
is 'each node has the copy, and the list of what is not in it' "$(cat left)" "$(for ((k = 1; k <= nodes; k++)); do printf '#define GRADCOMP_ABI_H excluded pipe followed unreadable large '; done)"
all_idle 'every node is idle'
done_testing
