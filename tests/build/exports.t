#!/bin/sh
# The library exports what the public headers declare, with a version, and nothing else.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"

lib=$GRADCOMP_BUILD/lib/libgradcomp.so
# A declaration may take several lines; the name stands before its first bracket.
cat "$GRADCOMP_SRC"/include/gradcomp/*.h | tr '\n' ' ' | grep -o 'GRADCOMP_EXPORT [^;(]*(' |
	grep -o 'gradcomp_[a-z0-9_]* *($' | tr -d ' (' | LC_ALL=C sort -u >"$tmp/declared"
nm -D --defined-only "$lib" | awk '$2 != "A" { print $3 }' | LC_ALL=C sort -u >"$tmp/exported"
sed 's/@.*//' "$tmp/exported" | LC_ALL=C sort -u >"$tmp/names"

check "the headers declare functions" test "$(wc -l <"$tmp/declared")" -gt 50
is "what is declared and not exported" "$(LC_ALL=C comm -23 "$tmp/declared" "$tmp/names")" ""
is "what is exported and not declared" "$(LC_ALL=C comm -13 "$tmp/declared" "$tmp/names")" ""
is "what has another version than GRADCOMP_0" "$(grep -v '@@GRADCOMP_0$' "$tmp/exported")" ""
done_testing
