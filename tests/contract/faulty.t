#!/bin/sh
# gradcomp plugin-check names the rule that a faulty plugin breaks. The first word of
# each file in tests/plugins/faulty says which that is, or which two. Of each rule a third of the plugins that break it,
# one at least; in check-long all of them.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp

echo "# PART=$(part)"
for file in "$GRADCOMP_SRC"/tests/plugins/faulty/*.c; do
	printf '%s:%s\n' "$(sed -n '1s|^/\* \([a-z -]*\): .*|\1|p' "$file" | sed 's/ /) (/g')" "$(basename "$file" .c)"
done >"$tmp/all"
awk -F: -v part="$(part)" -v whole="${WHOLE-}" '{ rule[NR] = $1; line[NR] = $0; n[$1]++ }
	END { for (i = 1; i <= NR; i++) {
		parts = n[rule[i]] < 3 ? n[rule[i]] : 3
		if (whole == "yes" || at[rule[i]]++ % parts == part % parts) print line[i] } }' "$tmp/all" >"$tmp/now"
is "every rule is broken by one" "$(cut -d: -f1 "$tmp/now" | sort -u)" "$(cut -d: -f1 "$tmp/all" | sort -u)"
while IFS=: read -r rule name; do
	# Only what hangs is waited for.
	limit=30 ranks=1..3
	case $name in hangs | loops_*) limit=3 ranks=1..5 ;; esac
	"$gradcomp" plugin-check --ranks $ranks --limit $limit "$GRADCOMP_BUILD/tests/plugins/faulty/$name.so" </dev/null >"$tmp/said" 2>&1
	status=$?
	if [ -z "$rule" ]; then
		is "$name: all is well" "$status $(grep -c '^FAIL' "$tmp/said")" "0 0"
	else
		is "$name: fails" "$status" 1
		like "$name: for breaking '$rule'" "$(sed -n 's/^FAIL *[0-9]* \([a-z-]*\) .*/(\1)/p' "$tmp/said" | tr '\n' ' ')" \
			"($rule)"
		is "$name: and each says what the rule is" "$(grep -c "^ *rule: " "$tmp/said")" "$(grep -c "^FAIL" "$tmp/said")"
		grep '^FAIL' "$tmp/said" | sed 's/^/# /'
	fi
done <"$tmp/now"
done_testing
