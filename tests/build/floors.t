#!/bin/sh
# The floors of the tree (tests/floors.list): nothing goes up, and an arrow that somebody
# puts in is found, in what is included and in what is called.
# shellcheck source=tests/support/tap.sh disable=SC2154,SC2317
. "$GRADCOMP_SRC/tests/support/tap.sh"

check "the tree keeps to its floors" "$GRADCOMP_SRC/tests/floors" "$GRADCOMP_BUILD"

# What plugins there are the library finds out. `none` and `auto` mean other things in it, too.
for plugin in $(cd "$GRADCOMP_SRC/plugins" && for p in compressors/* collectives/*; do basename "$p" .c; done); do
	case $plugin in
	none | auto) ;;
	*) (cd "$GRADCOMP_SRC" && grep -rnE --include='*.[ch]' "\"([^\"]*, )?$plugin([:,][^\"]*)?\"" runtime io) ;;
	esac
done | grep -vE ':[0-9]+:[[:space:]]*/?\*' >"$tmp/named" # but for comments
is "the library names no plugin" "$(cat "$tmp/named")" ""

# A copy, and its objects.
mkdir -p "$tmp/copy" "$tmp/build/obj"
for folder in include runtime io conformance tools plugins spank tests; do cp -r "$GRADCOMP_SRC/$folder" "$tmp/copy/"; done
for folder in runtime io conformance tools; do cp -r "$GRADCOMP_BUILD/obj/$folder" "$tmp/build/obj/"; done
chmod -R u+w "$tmp/copy" "$tmp/build"
cd "$tmp" || exit 1
floors () { copy/tests/floors "$@" build; }
check "a copy of it does" floors

# planted FILE TEXT: FILE of the copy has TEXT; what is found is in $said
planted () { printf '%b\n' "$2" >"copy/$1"; }
planted runtime/base/planted.c '#include "transport/core/link.h"'
refuse "an include that goes up" floors
like "... both files are named" "$said" "runtime/base/planted.c includes runtime/transport/core/link.h: base is below transport"
rm copy/runtime/base/planted.c

planted io/stage/planted.c 'int io_planted(void) { return 1; }'
planted runtime/config/planted.c 'int io_planted(void);\nint config_planted(void);\nint config_planted(void) { return io_planted(); }'
for file in io/stage/planted runtime/config/planted; do cc -c -o "build/obj/$file.o" "copy/$file.c" || exit 1; done
refuse "a call that goes up" floors
like "... both files are named" "$said" "runtime/config/planted.c calls io_planted of io/stage/planted.c: config is below io/stage"
check "--report lists it" floors --report
like "... by file" "$said" "calls io_planted of io/stage/planted.c"
like "... and counts it" "$said" "1  runtime/config -> io/stage"
rm copy/io/stage/planted.c
rm copy/runtime/config/planted.c
check "objects of files that are gone do not count" floors

planted runtime/config/planted.c '#include "config.h"'
refuse "an include that is not written from a root" floors
like "... is named" "$said" "runtime/config/planted.c includes config.h, which is not written from a root"
rm copy/runtime/config/planted.c
planted io/cache/link.h '#ifndef PLANTED_H\n#define PLANTED_H\n#endif'
refuse "a header whose name there is already" floors
like "... both are named" "$said" "link.h is the name of io/cache/link.h runtime/transport/core/link.h"
mv copy/io/cache/link.h copy/io/cache/planted.h
planted io/stage/planted_too.h '#ifndef PLANTED_H\n#define PLANTED_H\n#endif'
refuse "a guard that there is already" floors
like "... both are named" "$said" "PLANTED_H is the guard of io/cache/planted.h io/stage/planted_too.h"
rm copy/io/cache/planted.h copy/io/stage/planted_too.h
mkdir copy/runtime/attic
planted runtime/attic/planted.c 'int x;'
refuse "a folder that stands on no floor" floors
like "... is named" "$said" "runtime/attic/planted.c stands on no floor"
done_testing
