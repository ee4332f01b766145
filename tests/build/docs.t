#!/bin/bash
# The documents: links lead somewhere, the README is short, the C of a page compiles, the
# glossary's words are in use.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
cd "$GRADCOMP_SRC" || exit 1

command -v python3 > /dev/null || skip_all 'python3 is not installed'

# Links and their anchors, from the README to every page; and what sources, messages and manual pages name.
is 'every link leads somewhere, and every page can be reached' "$(python3 -B tests/build/links.py 2>&1)" ''
is 'every document that is named is there' "$(grep -rohE '\bdoc/[A-Za-z0-9_/-]+\.(md|svg|json)\b' --include='*' \
	--exclude-dir=golden --exclude-dir=build --exclude-dir=_build --exclude-dir=.git . | sort -u | while read -r file; do [ -e "$file" ] || [ "${file#doc/gradcomp/}" != "$file" ] || echo "$file"; done)" ''

# A document that names a test names one that there is: a folder, a script, a program or a pattern.
for document in *.md doc/*/*.md; do
	bad=
	# shellcheck disable=SC2016 # backticks of Markdown
	for test in $(grep -oE '`tests/[A-Za-z0-9_/.*-]+`' "$document" | tr -d '`' | sort -u); do
		[ "${test##*.}" = so ] || compgen -G "$test" > /dev/null || [ -e "$test.c" ] || bad="$bad $test"
	done
	is "$document: the tests it names are there" "$bad" ''
done

lines=$(wc -l < README.md)
check "README.md has at most 120 lines: $lines" test "$lines" -le 120

is 'CHANGELOG.md: a release has at most 40 lines' \
	"$(awk '/^## / { name = $2 } name { n[name]++ } END { for (name in n) if (n[name] > 40) print name, n[name] }' CHANGELOG.md)" ''

is 'sentences of users'\'' pages have fewer than 18 words in the mean' \
	"$(python3 -B tests/build/sentences.py README.md doc/user/*.md | awk '$1 >= 18')" ''

# The README's figures are those of doc/results/performance.md: both of a row stand in one line there.
other=
while IFS='|' read -r _ what own peer _; do
	own=$(grep -oE '[0-9.]+ (ms|s|%)' <<< "$own" | head -n 1) peer=$(grep -oE '[0-9.]+ (ms|s|%)' <<< "$peer" | head -n 1)
	grep -F -e "$own" doc/results/performance.md | grep -qF -e "$peer" || other="$other;$what"
done < <(sed -n '/^## Measured/,/^\[/p' README.md | grep '^| [^f]')
is "README.md: measured is what doc/results/performance.md says" "$other" ''

# The settings that doc/admin/configuration.md names are in the sample that is installed.
is 'doc/admin/configuration.md: its settings are there' "$(sed -n '/^| setting/,/^$/p' doc/admin/configuration.md | cut -d'|' -f2 |
	grep -oE '[a-z]+\.[a-z_]+' | while read -r setting; do
		sed -n "/^\[${setting%%.*}]/,/^\[/p" etc/gradcomp.conf.in | grep -q "^#${setting#*.} =" || echo "$setting"
	done)" ''

# The block of C in doc/user/c.md, compiled as it stands there.
awk '/^    #include </ { c = 1 } c && /^[^ ]/ { exit } c { print substr($0, 5) }' doc/user/c.md > "$tmp/page.c"
if command -v cc > /dev/null; then
	check "the page's C compiles" cc -std=c11 -Wall -Wextra -Werror -fsyntax-only -Iinclude "$tmp/page.c"
else
	skip "the page's C compiles" 'no cc'
fi

# doc/plugin/lowrank.md: its C is that of the example, spaces aside, and its program prints what the page says.
cat > "$tmp/excerpts.py" << 'PYTHON'
import re
source = " ".join(open("examples/plugin/slim.c").read().split())
blocks = re.findall(r"`slim\.c`:\n\n((?:    .*\n)+)", open("doc/plugin/lowrank.md").read())
print(len(blocks), "".join(b for b in blocks if " ".join(b.split()) not in source))
PYTHON
is 'the C of doc/plugin/lowrank.md is in slim.c' "$(python3 -B "$tmp/excerpts.py")" '6 '
awk '/^    import / { p = 1 } p && /^[^ ]/ { exit } p { print substr($0, 5) }' doc/plugin/lowrank.md > "$tmp/page.py"
awk '/^It prints:/ { p = 1; next } p && /^[^ ]/ { exit } p && NF { print substr($0, 5) }' doc/plugin/lowrank.md > "$tmp/prints"
is 'the program of doc/plugin/lowrank.md prints what is there' "$(python3 -B "$tmp/page.py" 2>&1)" "$(cat "$tmp/prints")"

# Every word of the glossary stands in another document too.
while IFS='|' read -r _ words _; do
	IFS=',' read -ra each <<< "$words"
	for word in "${each[@]}"; do
		word=${word# } word=${word% }
		others=$(grep -liwF -- "$word" README.md doc/*/*.md doc/man/* CONTRIBUTING.md | grep -cvx doc/user/glossary.md)
		check "the glossary's '$word' is in use" test "$others" -gt 0
	done
done < <(sed -n '/^|---/,$p' doc/user/glossary.md | sed 1d)
done_testing
