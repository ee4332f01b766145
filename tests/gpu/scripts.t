#!/bin/sh
# The scripts of tests/gpu/run without a GPU, the Python ones in host memory over Gloo: that they
# run and what they print is understood, not what it says about a GPU.
# shellcheck source=tests/support/tap.sh disable=SC2154
. "$GRADCOMP_SRC/tests/support/tap.sh"

[ -f "$GRADCOMP_BUILD/lib/libgradcomp.so" ] || skip_all "no libgradcomp.so in $GRADCOMP_BUILD/lib"
"${PYTHON:=python3}" -c 'import torch; assert torch.distributed.is_gloo_available()' 2>/dev/null ||
	{ PYTHON=/usr/bin/python3; "$PYTHON" -c 'import torch; assert torch.distributed.is_gloo_available()' 2>/dev/null; } ||
	skip_all "no PyTorch with Gloo"
if ! in_part 1 2; then
	skip "the scripts over Gloo" "they run every other day"
else
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
	newest=$("$PYTHON" "$GRADCOMP_SRC/tests/python/current" torch 2>/dev/null) || newest=$PYTHON
	usual=$PYTHON PYTHON=$newest
	section fsdp "$GRADCOMP_SRC/tests/gpu/sharded.py"
	PYTHON=$usual
	check "they run" "$PYTHON" -B "$GRADCOMP_SRC/tests/gpu/run" --bundle "$tmp/bundle" --out "$tmp/out" --only torch="$(scaled 120)" \
		--only rivals="$(scaled 60)" --only rates="$(scaled 60)" --only fsdp="$(scaled 120)"
	like "the hook's averages are right" "$(cat "$tmp/out/log")" "one rank raises: all end with a failure"
	if [ "$newest" != "$PYTHON" ]; then
		like "sharded models, too" "$(cat "$tmp/out/log")" "4 bits, residual: the weights are those of the host"
	else
		like "sharded models want a newer PyTorch" "$(cat "$tmp/out/log")" "a program since PyTorch 2.9"
	fi
	unlike "and none is wrong" "$(cat "$tmp/out/log")" "not ok"
	like "a step of PowerSGD is beside PyTorch's" "$(cat "$tmp/out/figures.tsv")" "of powerSGD_hook's"
	like "times of PyTorch's have the names of our own" "$(cat "$tmp/out/log")" "topk 1% of 2^16 "
fi

# Which operators are not measured. Those that write a word or two need not be.
none="moment sign_pairs put_flag act_if"
sed -n 's/^GRADCOMP_OPERATOR([a-z_]*, \([a-z_0-9]*\),.*/\1/p' "$GRADCOMP_SRC/include/gradcomp/operators.def" >"$tmp/operators"
while read -r name; do
	case " $none " in *" $name "*) continue ;; esac
	grep -q "gpu->$name(" "$GRADCOMP_SRC/tests/gpu/rates.c" || skip "the rate of $name" "tests/gpu/rates.c does not measure it"
done <"$tmp/operators"

# The scripts around programs that want a device, with others in their place.
stub () {
	mkdir -p "$(dirname "$tmp/stubs/$1")"
	printf '#!/bin/sh\n%s\n' "$2" >"$tmp/stubs/$1"
	chmod 755 "$tmp/stubs/$1"
}
stub bin/device 'echo ok 1 - the device copies'
stub python/gradcomp/bin/gradcomp 'echo nccl'
# shellcheck disable=SC2016 # it is a script
stub sections/operators 'echo ok 1 - add; [ -z "${GRADCOMP_TEST_UNWRITTEN-}" ] || { echo "========= read of what nobody wrote"; exit 99; }'
# compute-sanitizer [--OPTION ARGUMENT]... PROGRAM
# shellcheck disable=SC2016
stub path/compute-sanitizer 'while [ "${1#--}" != "$1" ]; do shift 2; done; exec "$@"'
stub bin/rates 'echo "figure: $* = 1 us"'
stub bin/steps 'echo "figure: a step = 2 ms"'
echo "gradcomp, for a test" >"$tmp/stubs/made"
cp "$GRADCOMP_SRC/tests/gpu/torch_rates.py" "$GRADCOMP_SRC/tests/gpu/measured.py" "$tmp/stubs/python/"
cp "$GRADCOMP_SRC/tests/gpu/facts" "$GRADCOMP_SRC/tests/gpu/rates" "$GRADCOMP_SRC/tests/gpu/sanitizer" "$tmp/stubs/sections/"
PATH=$tmp/stubs/path:$PATH
run () { "$PYTHON" -B "$GRADCOMP_SRC/tests/gpu/run" --bundle "$tmp/stubs" --out "$tmp/out" "$@"; }
check "facts and rates" run --only facts --only rates
like "the device is asked first" "$(sed -n 's/^facts [0-9.]* ok/ok/p' "$tmp/out/log")" "ok 1 - the device copies
ok 2 - all plugins of the bundle are loaded"
like "PyTorch is named" "$(cat "$tmp/out/log")" "# torch "
like "without PyTorch's times it says so" "$(cat "$tmp/out/log")" "# not beside PyTorch: this PyTorch has no CUDA"
like "and measures" "$(cat "$tmp/out/figures.tsv")" "rates	a step	2	ms"
refuse "the sanitizer's findings are a failure" run --only sanitizer
like "of the tool that has them" "$(cat "$tmp/out/log")" "not ok 4 - operators under initcheck"
like "with what it said" "$(cat "$tmp/out/log")" "# initcheck ========= read of what nobody wrote"
like "the others are right" "$(cat "$tmp/out/log")" "ok 2 - operators under racecheck: 1 results"
rm "$tmp/stubs/path/compute-sanitizer"
if command -v compute-sanitizer >/dev/null || [ -e /usr/local/cuda/bin/compute-sanitizer ]; then
	skip "without compute-sanitizer" "there is one"
else
	check "without compute-sanitizer that section is skipped" run --only sanitizer
	like "and says why" "$(cat "$tmp/out/summary")" "skipped: there is no compute-sanitizer"
fi
done_testing
