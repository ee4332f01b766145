#!/bin/sh
# time limit: 1800 s
# The tree as tests/comments, tests/dialect, clang-format, cppcheck and shellcheck see it; clang-tidy over all of it
# takes too long for a test, and cppcheck looks at half of it a day. That each tool is heard when it finds something, and
# what SINCE and LINT_HALF look at.
# shellcheck source=tests/support/tap.sh disable=SC2016,SC2154,SC2317
. "$GRADCOMP_SRC/tests/support/tap.sh"
unset SINCE LINT_TOOLS LINT_HALF

# with TOOL NAME: whether TOOL is there
with () {
	case $1 in
	clang-format)
		clang-format --version 2>/dev/null | grep -q 'version 14\.' && return
		skip "$2" "clang-format 14 is not installed"
		return 1 ;;
	comments | dialect) set -- python3 "$2" ;;
	esac
	command -v "$1" >/dev/null && return
	skip "$2" "$1 is not installed"
	return 1
}

[ "${WHOLE-}" = yes ] || half=$(($(part) % 2))
for tool in comments dialect clang-format cppcheck shellcheck; do
	! with $tool "the tree: $tool" || check "the tree: $tool" env LINT_HALF="${half-}" make -C "$GRADCOMP_BUILD" lint LINT_TOOLS=$tool
done

# ---- a tree in which there is something to be found

mkdir -p "$tmp/tree/tests" "$tmp/tree/runtime/base" "$tmp/tree/build"
cd "$tmp/tree" || exit 1
cp "$GRADCOMP_SRC/.clang-tidy" "$GRADCOMP_SRC/.clang-format" .
cp "$GRADCOMP_SRC/tests/lint" "$GRADCOMP_SRC/tests/comments" "$GRADCOMP_SRC/tests/dialect" "$GRADCOMP_SRC/tests/cppcheck.suppress" tests
printf 'int before(void);\nint before(void)\n{\n\tint *p = 0;\n\treturn  *p;\n}\n' >before.c
printf '#!/bin/sh\ncd $1\n' | tee before.sh >build/config.status
cp build/config.status build/made.sh
printf 'int base_one(void);\n' >runtime/base/one.h
printf '#include "base/one.h"\nint base_one(void)\n{\n\treturn 1;\n}\n' >runtime/base/one.c
printf '#include "base/one.h"\nint two(void);\nint two(void)\n{\n\treturn base_one();\n}\n' >runtime/base/two.c
lint () { LINT_TOOLS=$1 tests/lint '-Iruntime' before.c runtime/base/one.c runtime/base/two.c; }
for tool in clang-format clang-tidy cppcheck shellcheck; do
	with $tool "a finding of $tool" || continue
	refuse "a finding of $tool" lint $tool
	like "... is told" "$said" "before."
	like "... and counted as a failure" "$said" "lint: failed: $tool"
	unlike "... in the tree, not in a build folder" "$said" made.sh
done

if with cppcheck "halves"; then
	# before.c is the first of three files.
	LINT_HALF=0 refuse "the half with a finding" lint cppcheck
	LINT_HALF=1 check "the other half" lint cppcheck
	like "... is looked at" "$said" "lint: cppcheck, 1 files"
fi

if with python3 "comments that are no sentences"; then
	for n in $(seq 30); do printf '/* Returns %s. */\n// It does\n// so.\n' "$n"; done >comments.c
	printf 'char *s = "/* What is no comment. */", *u = "// Of none";\n/* Nothing of whatever kind. */\n' >>comments.c
	check "61 comments, none planted" lint comments
	like "... are counted" "$said" "lint: comments, 0 of 61 begin"
	printf 'int n; /* of one */\n\n/*\n * Whether it is.\n */\n' >>comments.c
	refuse "two are planted" lint comments
	like "... and counted" "$said" "lint: comments, 2 of 63 begin with What, Whether, Of, As or Who: 3.2 %, limit 3 %"
	like "... as a failure" "$said" "lint: failed: comments"
	printf '// Who?\n' >who.cu
	check "... and named" [ "$(tests/comments --list comments.c who.cu | sed '$d')" = "comments.c:93: /* of one */
comments.c:95: /* * Whether it is. */
who.cu:1: // Who?" ]
	rm comments.c who.cu

	printf 'static int count(const char *s)\n{\n\tint n = 0; /* of\n\n\t\t  it */\n\tfor (; *s; s++)\n\t\tn++;\n\n\treturn n;\n}\n' >dialect.c
	check "a function in the dialect" lint dialect
	printf 'static int is_no(void)\n{\n\tconst char *a = "x;"\n\t\t"{";\n\tgradcomp_status status = say(a);\n\n\treturn status;\n}\n/* ---- others ---- */\n' >>dialect.c
	refuse "one that is not" lint dialect
	is "... is told, with each place" "$(tests/dialect dialect.c | sed '$d')" "dialect.c:11: is_no() returns int, and answers yes or no: bool
dialect.c:15: gradcomp_status status: st
dialect.c:16: a blank line after declarations
dialect.c:19: a comment that draws a line"
	rm dialect.c
fi

if ! command -v git >/dev/null; then
	skip "SINCE" "git is not installed"
	done_testing
	exit
fi
git init -q . && git add -- * .clang-tidy .clang-format && git -c user.name=x -c user.email=x@localhost commit -qm "what was there before"
for tool in clang-format clang-tidy cppcheck shellcheck; do
	with $tool "SINCE: $tool" || continue
	export SINCE=HEAD
	check "SINCE: what $tool finds elsewhere is not told" lint $tool
	unlike "... nothing is looked at" "$said" "lint: $tool"
	case $tool in
	shellcheck) printf '#!/bin/sh\ncd "$1" || exit\n' >after.sh; file=after.sh ;;
	*) printf 'int base_one(void);\nint base_two(void);\n' >runtime/base/one.h; file=before.c ;;
	esac
	check "... what has changed, and is clean" lint $tool
	[ $tool = shellcheck ] || like "... is one file of those with a header that has" "$said" "$tool, 1 files"
	echo >>$file
	[ $tool = shellcheck ] && echo 'cd $2' >>$file
	refuse "... what has changed, and is not" lint $tool
	like "... is told" "$said" "$file"
	git checkout -q .
	rm -f after.sh
done
SINCE=no-such-commit refuse "a commit that is not there" lint shellcheck
done_testing
