#!/bin/sh
# The CUDA operators without a GPU: their source, compiled by the C++ compiler of the
# host against an emulation of the language, under the sanitisers, held against the
# host's operators; the two longest groups by turns, since raced.t compares all of them every day, without sanitisers.
# What this cannot show is said in emulate.h.
# shellcheck source=tests/support/tap.sh disable=SC2154
. "$GRADCOMP_SRC/tests/support/tap.sh"

src=$GRADCOMP_SRC cuda=$GRADCOMP_SRC/runtime/operators/cuda
cxx=$("$src/tests/fake/compile" -c) || skip_all "there is no C++ compiler"
[ "$(uname -m)" = x86_64 ] || skip_all "the emulation switches stacks on x86-64 only"
command -v "${CC:=cc}" >/dev/null || skip_all "there is no C compiler '$CC'"

sane="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
echo 'int main() { return 0; }' >"$tmp/t.cpp"
# shellcheck disable=SC2086
"$cxx" $sane -o "$tmp/t" "$tmp/t.cpp" 2>/dev/null && "$tmp/t" || sane=
flags="-O1 -g1 -Wall -Wextra -Werror -Wno-unknown-pragmas -ffp-contract=off -fno-strict-aliasing -DGRADCOMP_EMULATE
	-I$src/include -I$src/runtime -I$src -I$src/tests/cuda $sane"

build () {
	# shellcheck disable=SC2086
	for f in "$cuda"/*.cu "$src"/tests/cuda/*.cpp; do
		case $f in */missing.cu) continue ;; esac
		# The scheduler takes half of the time, and is not what is tested.
		case $f in */emulate.cpp) more='-O2 -fno-sanitize=undefined' ;; *) more= ;; esac
		echo "$cxx -std=c++17 -x c++ $(printf '%s ' $flags) $more -c -o $tmp/${f##*/}.o $f"
	done >"$tmp/commands"
	# shellcheck disable=SC2086
	for f in "$src"/tests/cuda/*.c "$src/tests/support/tap.c"; do
		echo "$CC -std=gnu11 $(printf '%s ' $flags) -I$src -D_GNU_SOURCE -c -o $tmp/${f##*/}.o $f"
	done >>"$tmp/commands"
	xargs -P 2 -I '{}' sh -c '{}' <"$tmp/commands" || return
	# shellcheck disable=SC2046,SC2086
	"$cxx" $sane -o "$tmp/test" "$tmp"/*.o "$GRADCOMP_BUILD/lib/libgradcomp.a" \
		$(sed -n 's/^LIB_LIBS *=//p' "$GRADCOMP_BUILD/config.mk") -ldl -lrt -lm -lpthread
}
if ! said=$(build 2>&1); then
	echo "not ok 1 - the kernels compile for the host"
	note "$(printf '%s\n' "$said" | tail -n 25)"
	echo "1..1"
	exit 1
fi
but=
in_part 0 2 || but=-selection
in_part 1 2 || but="$but -low_rank"
# shellcheck disable=SC2086
ASAN_OPTIONS=detect_stack_use_after_return=0 UBSAN_OPTIONS=print_stacktrace=1 "$tmp/test" $but >"$tmp/said"
status=$?
cat "$tmp/said"
# The table of the documentation is what was counted.
# shellcheck disable=SC2016 # backquotes of Markdown
sed -n 's/^# launches: \(.*\) \([0-9]*\)$/| `\1` | \2 |/p' "$tmp/said" | while read -r row; do
	grep -qF "$row" "$src/doc/dev/gpu.md" || { echo "not ok - doc/dev/gpu.md has no row that begins with: $row"; break; }
done >"$tmp/missing"
cat "$tmp/missing"
[ ! -s "$tmp/missing" ] || exit 1
exit $status
