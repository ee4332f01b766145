#!/bin/sh
# What a rank that has the secret says to another's service of a dataset, in whole conversations.
# shellcheck source=tests/support/tap.sh disable=SC1091
. "$GRADCOMP_SRC/tests/support/tap.sh"
# shellcheck source=tests/fuzz/engine.sh
. "$GRADCOMP_SRC/tests/fuzz/engine.sh"
: > "$tmp/conf"
export GRADCOMP_CONF="$tmp/conf"
fuzz "the service of a dataset is" "dataset" "io/dataset/*.c"
done_testing
