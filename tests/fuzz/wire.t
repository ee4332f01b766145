#!/bin/sh
# What comes over the wire: handshakes, endpoint records, control messages, messages and
# records over tcp, verbs and the rendezvous server, chunks of copies.
# shellcheck source=tests/support/tap.sh disable=SC1091
. "$GRADCOMP_SRC/tests/support/tap.sh"
# shellcheck source=tests/fuzz/engine.sh
. "$GRADCOMP_SRC/tests/fuzz/engine.sh"
fuzz "transport, rendezvous and chunks are" "handshake endpoint ctrl_msg message verbs rendezvous chunks" \
	"runtime/transport/*/*.c runtime/bootstrap/rendezvous*.c io/transfer/chunks.c runtime/base/error.c runtime/base/log.c"
done_testing
