#!/bin/sh
# The Python parts of tests/gpu/run, in host memory over Gloo: that they run and what they
# print is understood, not what it says about a GPU.
# shellcheck source=tests/support/tap.sh disable=SC2154
. "$GRADCOMP_SRC/tests/support/tap.sh"

[ -f "$GRADCOMP_BUILD/lib/libgradcomp.so" ] || skip_all "no libgradcomp.so in $GRADCOMP_BUILD/lib"
"${PYTHON:=python3}" -c 'import torch; assert torch.distributed.is_gloo_available()' 2>/dev/null ||
	{ PYTHON=/usr/bin/python3; "$PYTHON" -c 'import torch; assert torch.distributed.is_gloo_available()' 2>/dev/null; } ||
	skip_all "no PyTorch with Gloo"
mkdir -p "$tmp/bundle/sections"
printf '#!/bin/sh\necho ok 1 - no device is asked for\n' >"$tmp/bundle/sections/facts"
# section NAME ARGUMENTS...: a script of this folder, with the library and plugins of the build.
section () {
	name=$1
	shift
	cat >"$tmp/bundle/sections/$name" <<-END2
		#!/bin/sh
		export PYTHONPATH="$GRADCOMP_SRC/python:$GRADCOMP_SRC/tests/python:$GRADCOMP_SRC/tests/gpu"
		export GRADCOMP_LIBRARY="$GRADCOMP_BUILD/lib/libgradcomp.so" GRADCOMP_PLUGIN_PATH="$GRADCOMP_BUILD/lib/gradcomp"
		export GRADCOMP_TEST_DEVICE=cpu OMP_NUM_THREADS=1
		exec "$PYTHON" -B $*
	END2
}
section torch "$GRADCOMP_SRC/tests/gpu/train.py"
section rivals "$GRADCOMP_SRC/tests/gpu/rivals.py" cpu 1
section rates "$GRADCOMP_SRC/tests/gpu/torch_rates.py" "$GRADCOMP_SRC/etc/models" cpu 16
check "they run" "$PYTHON" -B "$GRADCOMP_SRC/tests/gpu/run" --bundle "$tmp/bundle" --out "$tmp/out" --only torch="$(scaled 120)" \
	--only rivals="$(scaled 60)" --only rates="$(scaled 60)"
like "the hook's averages are right" "$(cat "$tmp/out/log")" "one rank raises: all end with a failure"
unlike "and none is wrong" "$(cat "$tmp/out/log")" "not ok"
like "a step of PowerSGD is beside PyTorch's" "$(cat "$tmp/out/figures.tsv")" "of powerSGD_hook's"
like "times of PyTorch's have the names of our own" "$(cat "$tmp/out/log")" "topk 1% of 2^16 "
done_testing
