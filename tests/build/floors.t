#!/bin/sh
# The floors of the tree (tests/floors.list): nothing goes up, and an arrow that somebody
# puts in is found, in what is included and in what is called. Its cycles are those of
# tests/cycles.list, and one that somebody makes is found.
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

# A tree of the same floors with next to nothing on them.
mkdir -p "$tmp/copy/tests" "$tmp/build"
cp "$GRADCOMP_SRC/tests/floors" "$GRADCOMP_SRC/tests/floors.list" "$tmp/copy/tests/"
echo '# none' >"$tmp/copy/tests/cycles.list"
sed 's/#.*//; /^$/d' "$tmp/copy/tests/floors.list" | while read -r floor; do mkdir -p "$tmp/copy/$floor" "$tmp/build/graph/obj/$floor"; done
cd "$tmp" || exit 1
floors () { copy/tests/floors "$@" build; }
# planted FILE TEXT: FILE of the copy has TEXT; what is found is in $said
planted () { printf '%b\n' "$2" >"copy/$1"; }
# compiled FILE...: their objects, as make graph makes them
compiled () {
	for file; do cc -c -o "build/graph/obj/$file.o" "copy/$file.c" || exit 1; done
}
mkdir copy/runtime/transport/core
planted runtime/transport/core/link.h '#ifndef LINK_H\n#define LINK_H\n#endif'
planted runtime/base/lowest.c 'int lowest(void);\nint lowest(void) { return 0; }'
compiled runtime/base/lowest
check "a small tree does" floors
planted runtime/base/planted.c '#include "transport/core/link.h"'
refuse "an include that goes up" floors
like "... both files are named" "$said" "runtime/base/planted.c includes runtime/transport/core/link.h: base is below transport"
rm copy/runtime/base/planted.c

planted io/stage/planted.c 'int io_planted(void) { return 1; }'
planted runtime/config/planted.c 'int io_planted(void);\nint config_planted(void);\nint config_planted(void) { return io_planted(); }'
compiled io/stage/planted runtime/config/planted
refuse "a call that goes up" floors
like "... both files are named" "$said" "runtime/config/planted.c calls io_planted of io/stage/planted.c: config is below io/stage"
check "--report lists it" floors --report
like "... by file" "$said" "calls io_planted of io/stage/planted.c"
like "... and counts it" "$said" "1  runtime/config -> io/stage"
rm copy/io/stage/planted.c
rm copy/runtime/config/planted.c
check "objects of files that are gone do not count" floors

planted runtime/config/planted.c 'int lost(void);\nint lost(void) { return 1; }'
compiled runtime/config/planted
refuse "a symbol with a name of nothing" floors
like "... is named" "$said" "runtime/config/planted.c defines lost, which begins with the name of no file or folder of its own"
rm copy/runtime/config/planted.c

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
rm -r copy/runtime/attic

# ---- cycles

planted io/stage/planted.c 'int io_other(void);\nint io_planted(void);\nint io_planted(void) { return io_other(); }'
planted io/stage/planted_too.c 'int io_other(void);\nint io_planted(void);\nint io_other(void) { return io_planted(); }'
compiled io/stage/planted io/stage/planted_too
refuse "two files that call each other" floors
like "... both are named" "$said" "io/stage/planted.c io/stage/planted_too.c: in a cycle that tests/cycles.list does not have"
like "... and how one needs the other" "$said" "io/stage/planted_too.c calls io_planted of io/stage/planted.c"
refuse "... --strike does not take them into the list" floors --strike
echo "io/stage/planted.c io/stage/planted_too.c" >>copy/tests/cycles.list
check "a cycle of the list" floors
like "... is counted" "$said" "cycle of  2 files,     6 lines: io/stage/planted.c io/stage/planted_too.c"

planted io/stage/planted_too.c 'struct planted_ops { int (*call)(void); };\nint io_other(struct planted_ops *o);
int io_other(struct planted_ops *o) { return o->call(); }'
planted io/stage/planted.c 'struct planted_ops { int (*call)(void); };\nint io_other(struct planted_ops *o);\nint io_planted(void);
static int call(void) { return 1; }\nint io_planted(void) { struct planted_ops o = {.call = call}; return io_other(&o); }'
compiled io/stage/planted io/stage/planted_too
check "a call through a pointer that one file sets keeps it" floors
planted io/stage/planted_third.c 'struct planted_ops { int (*call)(void); };\nint io_third(void);\nint io_other(struct planted_ops *o);
static int call(void) { return 2; }\nint io_third(void) { struct planted_ops o = {.call = call}; return io_other(&o); }'
compiled io/stage/planted_third
refuse "one that two files set does not: the list has a line too many" floors
like "... which is named" "$said" "tests/cycles.list: in no cycle any more: io/stage/planted.c io/stage/planted_too.c"
check "... --strike strikes it" floors --strike
check "... and the list holds again" floors
is "... as it was" "$(cat copy/tests/cycles.list)" "# none"

planted io/stage/planted.c 'int io_planted(void);\nint io_planted(void) { return 1; }'
compiled io/stage/planted
echo "edge io/stage/planted.c io/stage/planted_third.c" >>copy/tests/cycles.list
planted io/stage/planted_third.c 'int io_planted(void);\nint io_third(void);\nint io_third(void) { return io_planted(); }'
compiled io/stage/planted_third
refuse "an edge that is written down makes a cycle" floors
like "... is named" "$said" "io/stage/planted.c calls back io/stage/planted_third.c"
done_testing
