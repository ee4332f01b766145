#!/bin/sh
# What comes over the wire: greetings, cards, frames of the control tree, messages,
# sealed records, verbs and the meeting place.
# shellcheck source=tests/tap.sh disable=SC1091
. "$GRADCOMP_SRC/tests/tap.sh"
# shellcheck source=tests/fuzz/engine.sh
. "$GRADCOMP_SRC/tests/fuzz/engine.sh"
fuzz "transport and meeting place are" "greeting card frame message verbs meet" \
	"runtime/transport/*.c io/meet/*.c runtime/error.c runtime/log.c"
done_testing
