#!/bin/sh
# What comes from files: tar shards, manifests of copies, machine and model files.
# shellcheck source=tests/support/tap.sh disable=SC1091
. "$GRADCOMP_SRC/tests/support/tap.sh"
# shellcheck source=tests/fuzz/engine.sh
. "$GRADCOMP_SRC/tests/fuzz/engine.sh"
fuzz "what reads them is" "tar manifest model" "runtime/config/record_io.c runtime/cost/machine.c runtime/cost/model.c runtime/cost/layers.c runtime/schedule/plan_file.c runtime/config/inifile.c io/format/*.c io/manifest/*.c runtime/base/text.c runtime/base/error.c"
done_testing
