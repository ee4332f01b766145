#!/bin/sh
# How far compression and exchange of a step overlap on a device: figures, not limits.
FAKE_PROGRAMS=overlap exec sh "$GRADCOMP_SRC/tests/fake/device.t"
