#!/bin/sh
# What comes over the wire: handshakes, endpoint records, control messages, messages and
# records over tcp, verbs and the rendezvous server.
# shellcheck source=tests/support/tap.sh disable=SC1091
. "$GRADCOMP_SRC/tests/support/tap.sh"
# shellcheck source=tests/fuzz/engine.sh
. "$GRADCOMP_SRC/tests/fuzz/engine.sh"
fuzz "transport and rendezvous are" "handshake endpoint ctrl_msg message verbs rendezvous" \
	"runtime/transport/core/*.c runtime/transport/tcp/*.c runtime/transport/shm/*.c runtime/transport/verbs/*.c runtime/transport/control/*.c runtime/bootstrap/rendezvous*.c runtime/base/error.c runtime/base/log.c"
done_testing
