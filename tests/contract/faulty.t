#!/bin/sh
# gradcomp plugin-check names the rule that a faulty plugin breaks. The first word of
# each file in tests/plugins/faulty says which that is, or which two.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp

for file in "$GRADCOMP_SRC"/tests/plugins/faulty/*.c; do
	name=$(basename "$file" .c)
	rule=$(sed -n '1s|^/\* \([a-z -]*\): .*|\1|p' "$file" | sed 's/ /) (/g')
	# Only what hangs is waited for.
	limit=30 ranks=1..3
	case $name in hangs | loops_*) limit=3 ranks=1..5 ;; esac
	"$gradcomp" plugin-check --ranks $ranks --limit $limit "$GRADCOMP_BUILD/tests/plugins/faulty/$name.so" >"$tmp/said" 2>&1
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
done
done_testing
