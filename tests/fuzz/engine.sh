# shellcheck shell=sh disable=SC2154
# Harnesses of this folder under libFuzzer, with AddressSanitizer and UBSan, for
# FUZZ_SECONDS each (2, in check-long 20); to be sourced behind tests/support/tap.sh. FUZZ_ONLY='endpoint ctrl_msg' names
# some of them.
#
#   fuzz WHAT 'NAME...' 'FOLDER/*.c...'    what is fuzzed is instrumented; the rest is as in this build
seconds=${FUZZ_SECONDS:-2}
[ "${WHOLE-}" != yes ] || seconds=${FUZZ_SECONDS:-20}

command -v clang >/dev/null || skip_all "clang is not installed"
echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n ? 0 : 0; }' >"$tmp/try.c"
clang -fsanitize=fuzzer,address,undefined -o "$tmp/try" "$tmp/try.c" 2>/dev/null || skip_all "this clang has no libFuzzer"

cd "$GRADCOMP_SRC" || exit 1
value () { sed -n "s/^$1 *= *//p" "$GRADCOMP_BUILD/config.mk"; }
flags="-std=gnu11 -O1 -g -D_GNU_SOURCE= -include $GRADCOMP_BUILD/gradcomp_config.h -DLIBFUZZER -I. -Iinclude -Iruntime
	-fsanitize=address,undefined -fno-sanitize-recover=undefined $(value SODIUM_CFLAGS)"

build () {
	for f in $1; do
		echo "$f"
	done >"$tmp/files"
	for f in $names; do echo "tests/fuzz/$f.c"; done >>"$tmp/files"
	# shellcheck disable=SC2016,SC2086
	xargs -P 2 -I '{}' sh -c 'clang '"$(printf '%s ' $flags)"' -fsanitize=fuzzer-no-link -c \
		-o "$1/$(echo "$2" | tr / -).o" "$2"' - "$tmp" '{}' <"$tmp/files"
}

fuzz () {
	names=${FUZZ_ONLY:-$2}
	check "$1 built for libFuzzer" build "$3"
	for name in $names; do
		objects=$(find "$tmp" -maxdepth 1 -name "*.c.o" ! -name "tests-fuzz-*")
		# shellcheck disable=SC2046,SC2086
		check "$name: linked" clang -fsanitize=fuzzer,address,undefined -o "$tmp/$name" "$tmp/tests-fuzz-$name.c.o" \
			$objects "$GRADCOMP_BUILD/lib/check.a" "$GRADCOMP_BUILD/lib/libgradcomp.a" $(value LIB_LIBS) -lm -ldl -lrt -pthread
		mkdir "$tmp/corpus-$name"
		(cd "$tmp" && "./$name" -max_total_time="$seconds" -timeout=10 -max_len=8192 -rss_limit_mb=2048 -print_final_stats=1 \
			"corpus-$name" "$GRADCOMP_SRC/tests/fuzz/corpus/$name") >"$tmp/log" 2>&1
		status=$? runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$tmp/log")
		tried "${runs:-0}" 'inputs of libFuzzer'
		tap_result $status "$name, $seconds s: runs: $runs" || {
			note "$(tail -n 30 "$tmp/log")"
			for f in "$tmp"/crash-* "$tmp"/timeout-* "$tmp"/oom-*; do
				[ -f "$f" ] && note "$f: $(od -An -tx1 -v "$f" | tr -d ' \n' | cut -c1-2000)" && rm "$f"
			done
		}
	done
}
