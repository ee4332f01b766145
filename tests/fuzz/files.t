#!/bin/sh
# What comes from files: tar shards, record files, manifests of copies, machine and model files.
# shellcheck source=tests/tap.sh disable=SC1091
. "$GRADCOMP_SRC/tests/tap.sh"
# shellcheck source=tests/fuzz/engine.sh
. "$GRADCOMP_SRC/tests/fuzz/engine.sh"
fuzz "what reads them is" "tar records manifest model" "runtime/model/fields.c runtime/model/files.c runtime/model/machine.c runtime/model/model.c runtime/model/layers.c runtime/model/plan_file.c runtime/inifile.c io/samples/*.c io/manifest*.c io/symlink.c io/text.c runtime/error.c common/checksum.c"
done_testing
