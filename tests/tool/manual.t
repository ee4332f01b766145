#!/bin/bash
# The manual pages: every command has one, with exactly the options that its --help has; gradcomp(3) has
# every function of the headers; mandoc finds nothing.
# shellcheck source=tests/tool/tool.sh
. "$GRADCOMP_SRC/tests/tool/tool.sh"
man=$GRADCOMP_SRC/doc/man

commands=$("$gradcomp" help | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p' | grep -vxE 'help|version')
for command in $commands; do
	page=$man/gradcomp-$command.1
	check "gradcomp-$command(1) is there" test -s "$page" || continue
	check "gradcomp(1) names it" grep -qx ".It Xr gradcomp-$command 1" "$man/gradcomp.1"
	{
		"$gradcomp" "$command" --help
		[ "$command" != bench ] || for verb in allreduce collectives compressors io reduce; do
			"$gradcomp" bench "$verb" --help
		done
	} | grep -oE -e '(^|[^a-z-])--[a-z][a-z-]*' | grep -oE -e '--[a-z-]*' | grep -vx -e --help | sort -u > "$tmp/has"
	grep -oE 'Fl -[a-z][a-z-]*' "$page" | sed 's/Fl /-/' | sort -u > "$tmp/documented"
	# In examples of commands they stand as they are typed.
	grep '^\.[QD]l' "$page" | grep -oE -e '--[a-z][a-z-]*' | sort -u - "$tmp/documented" > "$tmp/mentioned"
	is "it has the options of --help" "$(comm -23 "$tmp/has" "$tmp/mentioned")" ""
	is "and no others" "$(comm -13 "$tmp/has" "$tmp/documented")" ""
done

cat "$GRADCOMP_SRC"/include/gradcomp/*.h | tr '\n' ' ' | grep -oE 'GRADCOMP_EXPORT [^(;{]*\(' | grep -oE 'gradcomp_[a-z_0-9]+\($' |
	tr -d '(' | sort -u > "$tmp/functions"
check "the headers have functions" test "$(wc -l < "$tmp/functions")" -gt 50
grep -oE '\bFn gradcomp_[a-z_0-9]+' "$man/gradcomp.3" | sed 's/Fn //' | sort -u > "$tmp/documented"
is "gradcomp(3) has the functions of the headers" "$(diff "$tmp/functions" "$tmp/documented" | grep '^[<>]')" ""

for page in "$man"/*; do
	if command -v mandoc > /dev/null; then
		is "mandoc accepts ${page##*/}" "$(mandoc -Tlint -Wwarning "$page" 2>&1)" ""
	else
		skip "mandoc accepts ${page##*/}" "mandoc is not installed"
	fi
	sed -n 's/^\.\(It \)*Xr \([^ ]*gradcomp[^ ]*\) \([0-9]\).*/\2.\3/p' "$page" | sort -u |
		while read -r other; do [ -s "$man/$other" ] || echo "$other"; done > "$tmp/missing"
	is "... and the pages of ours that it refers to are there" "$(cat "$tmp/missing")" ""
done
done_testing
