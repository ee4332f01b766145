#!/bin/sh
# Everything that works with a GPU, without one: the reducer's device path, the module
# of memory and streams and the collective nccl are compiled against a fake CUDA and a
# fake NCCL, under the sanitisers, and run with ranks as processes.
# shellcheck source=tests/support/tap.sh disable=SC2154
. "$GRADCOMP_SRC/tests/support/tap.sh"

programs=${FAKE_PROGRAMS-"reducer collective faults delayed coder shrink group auto verify capture held order launches bad_input"}
src=$GRADCOMP_SRC fake=$GRADCOMP_SRC/tests/fake lib=$tmp/lib
cxx=$("$fake/compile" -c) || skip_all "there is no C++ compiler"
command -v "${CC:=cc}" >/dev/null || skip_all "there is no C compiler '$CC'"

sane="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
# With check-tsan all that is tested is made for it.
grep -q '^CFLAGS = .*-fsanitize=thread' "$GRADCOMP_BUILD/config.mk" && sane=-fsanitize=thread
echo 'int main() { return 0; }' >"$tmp/t.cpp"
# shellcheck disable=SC2086
"$cxx" $sane -o "$tmp/t" "$tmp/t.cpp" 2>/dev/null && "$tmp/t" || sane=

build () {
	"$fake/compile" "$lib" "$sane" || return
	for program in $programs; do
		wraps=
		[ "$program" = auto ] && wraps=-Wl,--wrap=metrics_fill
		echo "$CC -std=gnu11 -D_GNU_SOURCE -O1 -g1 -Wall -Wextra -Werror $sane -I$fake/include -I$src/include -I$src/runtime -I$src" \
			"-o $tmp/$program $fake/$program.c $src/tests/support/tap.c $src/tests/support/pace.c $GRADCOMP_BUILD/lib/libgradcomp.a" \
			"-L$lib -lfakecuda -Wl,-rpath,$lib $(sed -n 's/^LIB_LIBS = //p' "$GRADCOMP_BUILD/config.mk") -lm -ldl -lrt -lpthread $wraps"
	done >"$tmp/commands"
	xargs -P 2 -I '{}' sh -c '{}' <"$tmp/commands"
}
if ! said=$(build 2>&1); then
	echo "not ok 1 - the device's code compiles against the fake"
	note "$(printf '%s\n' "$said" | tail -n 25)"
	echo "1..1"
	exit 1
fi

LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
GRADCOMP_PLUGIN_PATH=$lib/gradcomp:$GRADCOMP_BUILD/lib/gradcomp
UBSAN_OPTIONS=print_stacktrace=1
# Of which processes have to load a second one, or the driver's.
mkdir -p "$tmp/other" && cp "$lib/libnccl.so.2" "$tmp/other/"
FAKE_NCCL_OTHER=$tmp/other/libnccl.so.2
FAKE_CUDA_DRIVER_LIBRARY=$lib/driver/libcuda.so.1
export LD_LIBRARY_PATH GRADCOMP_PLUGIN_PATH UBSAN_OPTIONS FAKE_NCCL_OTHER FAKE_CUDA_DRIVER_LIBRARY
# Each program numbers its own results; here they are one list.
for program in $programs; do
	"$tmp/$program" >"$tmp/out" 2>&1
	status=$?
	while IFS= read -r line; do
		case $line in
		"ok "*) tap_result 0 "$program: ${line#ok * - }" ;;
		"not ok "*) tap_result 1 "$program: ${line#not ok * - }" ;;
		"1.."*) ended=$program ;;
		*) note "${line#\# }" ;;
		esac
	done <"$tmp/out"
	[ "${ended-}" = "$program" ]
	tap_result $? "$program reaches its end (status $status)"
done
done_testing
