#!/bin/sh
# What comes over the wire: greetings, cards, frames of the control tree, messages,
# sealed records and verbs.
# shellcheck source=tests/tap.sh disable=SC1091
. "$GRADCOMP_SRC/tests/tap.sh"
# shellcheck source=tests/fuzz/engine.sh
. "$GRADCOMP_SRC/tests/fuzz/engine.sh"
fuzz "the transport is" "greeting card frame message verbs" "runtime/transport/*.c runtime/error.c runtime/log.c"
done_testing
