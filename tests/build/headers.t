#!/bin/sh
# Each public header stands alone, in C and in C++, and needs no other folder.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"

try () {
	compiler=$1
	shift
	if ! command -v "$compiler" >/dev/null; then
		skip "$compiler $*" "$compiler is not installed"
		return
	fi
	for header in "$GRADCOMP_SRC"/include/gradcomp/*.h "$GRADCOMP_SRC"/include/gradcomp/sdk/*.h; do
		name=${header#"$GRADCOMP_SRC"/include/}
		case $compiler in *++) file=$tmp/t.cc ;; *) file=$tmp/t.c ;; esac
		printf '#include <%s>\n#include <%s>\nint main(void) { return 0; }\n' "$name" "$name" >"$file"
		check "$compiler $*: $name" "$compiler" "$@" -Wall -Wextra -Werror -fsyntax-only \
			-I"$GRADCOMP_SRC/include" "$file"
	done
}
try gcc -std=c11 -pedantic
try gcc -std=gnu17 -Wstrict-prototypes -Wundef
try clang -std=c11
try g++ -std=c++11
try g++ -std=c++20
try clang++ -std=c++17

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if command -v "$nvcc" >/dev/null; then
	for header in "$GRADCOMP_SRC"/include/gradcomp/*.h "$GRADCOMP_SRC"/include/gradcomp/sdk/*.h; do
		echo "#include <${header#"$GRADCOMP_SRC"/include/}>"
	done >"$tmp/t.cu"
	check "nvcc: all of them" "$nvcc" -Werror all-warnings -c -o "$tmp/t.o" -I"$GRADCOMP_SRC/include" "$tmp/t.cu"
else
	skip "nvcc: all of them" "nvcc is not installed"
fi

printf '#include <gradcomp/gradcomp.h>\n#include <gradcomp/coder.h>\n' >"$tmp/t.c"
is "a program does not get what is for plugins" \
	"$(gcc -E -P -I"$GRADCOMP_SRC/include" "$tmp/t.c" | grep -cE '_(compressor|collective)_v1|GRADCOMP_TRAIT|\} gradcomp_links')" 0
for header in gradcomp coder; do
	is "$header.h: every function says how it fails" "$(grep -c 'Errors: ' "$GRADCOMP_SRC/include/gradcomp/$header.h")" \
		"$(grep -c '^GRADCOMP_EXPORT ' "$GRADCOMP_SRC/include/gradcomp/$header.h")"
done
printf '#define GRADCOMP_WARN_EXPERIMENTAL\n#include <gradcomp/coder.h>\nvoid f(void) { gradcomp_coder_free(0); }\n' >"$tmp/t.c"
refuse "who wants to know is warned of what is experimental" gcc -Werror -fsyntax-only -I"$GRADCOMP_SRC/include" "$tmp/t.c"
like "... and why" "$said" "may change in the next release"
is "they include each other and the C library alone" \
	"$(grep -h '#include' "$GRADCOMP_SRC"/include/gradcomp/*.h "$GRADCOMP_SRC"/include/gradcomp/sdk/*.h | grep -v -x -E \
		-e '#include "(gradcomp/)?(abi|gradcomp|compressor|collective|operators|stage)\.h"' \
		-e '#include "gradcomp/operators\.def"' \
		-e '#include "gradcomp/sdk/[a-z_]+\.h"' \
		-e '#include <(std(arg|bool|def|int|io|lib)|string)\.h>')" ""
is "plugins include public headers and their own" \
	"$(cd "$GRADCOMP_SRC/plugins" && grep -rn '#include "' . | grep -vE '"(gradcomp|plugins)/')" ""
done_testing
