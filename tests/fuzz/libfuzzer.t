#!/bin/sh
# plugins.c under libFuzzer, for FUZZ_SECONDS (20): compressors that clang instruments,
# the walls of the kit, seeds from the frozen payloads.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
seconds=${FUZZ_SECONDS:-20}

command -v clang >/dev/null || skip_all "clang is not installed"
echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n ? 0 : 0; }' >"$tmp/try.c"
clang -fsanitize=fuzzer -o "$tmp/try" "$tmp/try.c" 2>/dev/null || skip_all "this clang has no libFuzzer"

mkdir "$tmp/plugins" "$tmp/seeds" "$tmp/corpus"
common="-std=gnu11 -O1 -g -D_GNU_SOURCE= -include $GRADCOMP_BUILD/gradcomp_config.h -ffp-contract=off -I$GRADCOMP_SRC/include"
libraries=$(sed -n -e 's/^ZFP_LIBS *= *//p' -e 's/^LZ4_LIBS *= *//p' -e 's/^ZSTD_LIBS *= *//p' "$GRADCOMP_BUILD/config.mk" |
	tr '\n' ' ')
compile="clang $common -fPIC -fsanitize=fuzzer-no-link -I$GRADCOMP_SRC"
both () { xargs -P 2 -d '\n' -I '{}' sh -c '{}'; }
# What they share is compiled once; each takes what it uses.
for file in "$GRADCOMP_SRC"/plugins/sdk/*.c "$GRADCOMP_SRC"/plugins/common/compressors/*.c; do
	echo "$compile -c -o $tmp/$(basename "$file").o $file"
done | both
ar rcs "$tmp/sdk.a" "$tmp"/*.c.o
for so in "$GRADCOMP_BUILD"/lib/gradcomp/compressors/*.so; do
	name=$(basename "$so" .so)
	files=$(find "$GRADCOMP_SRC/plugins/compressors/$name.c" "$GRADCOMP_SRC/plugins/compressors/$name" \
		-maxdepth 1 -name '*.c' 2>/dev/null | tr '\n' ' ')
	echo "$compile -shared -o $tmp/plugins/$name.so $files $tmp/sdk.a $libraries" \
		"-lm 2>$tmp/log.$name || echo '# $name is left out:' \$(grep -m1 error $tmp/log.$name)"
done | both
# shellcheck disable=SC2046,SC2086
check "plugins.c is built with libFuzzer" clang $common -DFUZZ_ENGINE -fsanitize=fuzzer -rdynamic -I"$GRADCOMP_SRC/runtime" -I"$GRADCOMP_SRC" \
	-o "$tmp/fuzz" "$GRADCOMP_SRC/tests/fuzz/plugins.c" "$GRADCOMP_SRC"/conformance/*.c \
	"$GRADCOMP_BUILD/lib/libgradcomp.a" $(sed -n 's/^LIB_LIBS *=//p' "$GRADCOMP_BUILD/config.mk") -lm -ldl -lrt -pthread
is "all compressors are there" "$(find "$tmp/plugins" -name '*.so' | wc -l)" \
	"$(find "$GRADCOMP_BUILD/lib/gradcomp/compressors" -name '*.so' | wc -l)"
"$GRADCOMP_BUILD/tests/fuzz/plugins" "$tmp/seeds" >/dev/null
[ -n "$(find "$tmp/seeds" -type f | head -n 1)" ]
tap_result $? "seeds from the frozen payloads"
cd "$tmp" || exit 1
FUZZ_PLUGINS=$tmp/plugins ./fuzz -max_total_time="$seconds" -timeout=10 -max_len=4096 -rss_limit_mb=2048 -print_final_stats=1 \
	corpus seeds >log 2>&1
tap_result $? "$seconds s: $(sed -n 's/^stat::number_of_executed_units: */runs: /p' log)" || {
	note "$(tail -n 30 log)"
	for f in crash-* timeout-* oom-*; do [ -f "$f" ] && note "$f: $(od -An -tx1 -v "$f" | tr -d ' \n' | cut -c1-2000)"; done
}
done_testing
