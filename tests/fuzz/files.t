#!/bin/sh
# What comes from files of data sets: tar shards and record files.
# shellcheck source=tests/tap.sh disable=SC1091
. "$GRADCOMP_SRC/tests/tap.sh"
# shellcheck source=tests/fuzz/engine.sh
. "$GRADCOMP_SRC/tests/fuzz/engine.sh"
fuzz "readers of samples are" "tar records" "io/samples/*.c io/text.c runtime/error.c common/checksum.c"
done_testing
