#!/bin/sh
# gradcomp records, and samples as Python's tarfile has them.
# shellcheck source=tests/support/tap.sh disable=SC1091,SC2154,SC2317
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
pid=

cleanup () {
	[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null
}
cd "$tmp" || exit 1

# records ARGUMENTS: leaves $out, $log and $status
records () {
	"$gradcomp" records "$@" >out 2>log
	status=$?
	out=$(cat out) log=$(cat log)
}

mkdir -p tree/cat tree/dog
echo one >tree/cat/1.txt
: >tree/dog/empty.txt
printf 'three' >tree/dog/3.bin
printf pic >a.jpg
printf 5 >a.cls
tar -cf shard.tar a.jpg a.cls

records list tree
is 'a tree is listed' "$out" "       0      0           4  -  cat/1.txt
       1      1           5  -  dog/3.bin
       2      1           0  -  dog/empty.txt"
records list --suffixes=txt --summary tree
is 'suffixes, the totals alone' "$out" 'tree: 2 samples, 4 bytes, 2 classes'
records list shard.tar
is 'a shard is listed' "$out" '       0      5           4  jpg,cls  a'
records pack tree tree.gcr
is 'packs' "$status" 0
like 'says what' "$log" 'gradcomp: packed 3 samples, 9 bytes of tree in '
is 'on stderr' "$out" ''
records list --summary tree.gcr
is 'it is what it was' "$out" 'records: 3 samples, 9 bytes, 2 classes'
records cat tree.gcr 1
is 'a part' "$out" three
records cat shard.tar 0 jpg
is 'a part by name' "$out" pic
records cat shard.tar 0
is 'which of two parts' "$status" 1
like 'names them' "$log" 'sample 0 (a) has the parts jpg, cls; say which'
records cat shard.tar 0 png
like 'no such part' "$log" 'has the parts jpg, cls; not this one'
records cat tree.gcr 3
like 'no such sample' "$log" 'tree.gcr has 3 samples; there is no sample 3'
records pack tree tree.gcr
is 'a file that is there' "$status" 1
is 'is kept' "$log" 'gradcomp: tree.gcr exists; --force replaces it'
records pack --force --quiet --json shard.tar tree.gcr
is 'replaced when asked' "$status$log" 0
check 'JSON of pack' python3 -c '
import json
r = json.load(open("out"))
assert r["count"] == 1 and r["bytes"] == 4 and r["format"] == "tar" and r["file"] == "tree.gcr", r'
records list --json tree.gcr
check 'JSON of list' python3 -c '
import json
r = json.load(open("out"))
assert r["format"] == "records" and r["count"] == 1 and r["bytes"] == 4 and r["classes"] == [], r
assert r["samples"] == [{"index": 0, "key": "a", "label": 5,
                         "parts": [{"name": "jpg", "bytes": 3}, {"name": "cls", "bytes": 1}]}], r'
records verify --json tree.gcr
is 'verifies' "$status" 0
like 'says so' "$log" 'gradcomp: checked 1 sample, 4 bytes of tree.gcr in'
printf X | dd of=tree.gcr bs=1 seek=17 conv=notrunc 2>dd.log
records verify tree.gcr
is 'damage' "$status" 1
is 'is named' "$log" 'gradcomp: tree.gcr: part 0 of record 0 (a) at byte 16 is damaged: its checksum does not match'
records pack tree.gcr copy.gcr
is 'and is not packed' "$status" 1
is 'nothing is left of that' "$(ls ./*.tmp copy.gcr 2>/dev/null)" ''
for wrong in '' 'what' 'list' 'pack a' 'cat a' 'cat a -1' 'cat a x' 'list --format=zip a' 'list --workers=0 a' 'verify a b' 'list --what a'; do
	# shellcheck disable=SC2086
	records $wrong
	is "usage: '$wrong'" "$status" 2
done
for help in --help 'pack --help' 'verify -h'; do
	# shellcheck disable=SC2086
	records $help
	like "help: $help" "$status$out" '0usage: gradcomp records'
done
records list none
is 'no such path' "$status$log" '1gradcomp: there is no none'
"$gradcomp" records cat tree 1 >/dev/full 2>log
is 'output that cannot be written' $? 1

# ---- as values of a data set
: >conf
export GRADCOMP_CONF="$tmp/conf" GRADCOMP_PLUGIN_PATH="$GRADCOMP_BUILD/lib/gradcomp"
mkdir shards
cp shard.tar shards/1.tar
cp shard.tar shards/2.tar
records pack --quiet shards shards.gcr
for path in shards shards.gcr; do
	is "two epochs over $path" "$("$GRADCOMP_BUILD/examples/c/samples" $path 2>&1)" \
		"rank 0, epoch 0: 2 samples, 8 bytes, sum of labels 10, 2 read from files
rank 0, epoch 1: 2 samples, 8 bytes, sum of labels 10, 0 read from files"
done
is 'and over a tree' "$(GRADCOMP_DATA=tree "$GRADCOMP_BUILD/examples/c/samples" 2>&1 | tail -n 1)" \
	'rank 0, epoch 1: 3 samples, 9 bytes, sum of labels 2, 0 read from files'

# ---- stopped
mkdir slow
i=0
while [ $i -lt 300 ]; do
	truncate -s 1M "slow/$i"
	i=$((i + 1))
done
"$gradcomp" records pack --workers=1 slow slow.gcr 2>log &
pid=$!
for i in $(seq 200); do
	set -- ./slow.gcr.*.tmp
	[ -s "$1" ] && break
	sleep 0.02
done
kill -TERM $pid
wait $pid
status=$?
pid=
if [ $status = 0 ]; then
	skip 'stopped by SIGTERM' 'it was done before'
else
	is 'stopped by SIGTERM' $status 143
	is 'nothing is left' "$(ls -d slow.gcr*  2>/dev/null)" ''
fi
rm -rf slow

# ---- against tarfile
mkdir oracle
check 'as tarfile and WebDataset have it' python3 "$GRADCOMP_SRC/tests/io/tar_oracle.py" "$GRADCOMP_BUILD" "$tmp/oracle" "${SEED:-$$}" 40
note "seed ${SEED:-$$}: $said"
done_testing
