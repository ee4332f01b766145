#!/bin/sh
# What comes from files of data sets: tar shards, record files, manifests of copies.
# shellcheck source=tests/tap.sh disable=SC1091
. "$GRADCOMP_SRC/tests/tap.sh"
# shellcheck source=tests/fuzz/engine.sh
. "$GRADCOMP_SRC/tests/fuzz/engine.sh"
fuzz "what reads them is" "tar records manifest" "io/samples/*.c io/manifest*.c io/symlink.c io/text.c runtime/error.c common/checksum.c"
done_testing
