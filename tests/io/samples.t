#!/bin/sh
# Samples of folders and tar shards: as values of a data set, and as Python's tarfile has them.
# shellcheck source=tests/support/tap.sh disable=SC1091,SC2154,SC2317
. "$GRADCOMP_SRC/tests/support/tap.sh"
cd "$tmp" || exit 1

mkdir -p folder/cat folder/dog
echo one >folder/cat/1.txt
: >folder/dog/empty.txt
printf 'three' >folder/dog/3.bin
printf pic >a.jpg
printf 5 >a.cls
tar -cf shard.tar a.jpg a.cls

# ---- as values of a data set
: >conf
export GRADCOMP_CONF="$tmp/conf" GRADCOMP_PLUGIN_PATH="$GRADCOMP_BUILD/lib/gradcomp"
mkdir shards
cp shard.tar shards/1.tar
cp shard.tar shards/2.tar
is "two epochs over shards" "$("$GRADCOMP_BUILD/examples/c/samples" shards 2>&1)" \
	"rank 0, epoch 0: 2 samples, 8 bytes, sum of labels 10, 2 read from files
rank 0, epoch 1: 2 samples, 8 bytes, sum of labels 10, 0 read from files"
is 'and over a folder' "$(GRADCOMP_DATA=folder "$GRADCOMP_BUILD/examples/c/samples" 2>&1 | tail -n 1)" \
	'rank 0, epoch 1: 3 samples, 9 bytes, sum of labels 2, 0 read from files'

# ---- against tarfile
mkdir oracle
check 'as tarfile and WebDataset have it' python3 "$GRADCOMP_SRC/tests/io/tar_oracle.py" "$GRADCOMP_BUILD" "$tmp/oracle" "${SEED:-$$}" 40
note "seed ${SEED:-$$}: $said"
done_testing
