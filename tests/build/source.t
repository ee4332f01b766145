#!/bin/sh
# The source archive, a build in the source folder by another compiler, and what
# is compiled again after a change.
# shellcheck source=tests/support/tap.sh disable=SC2317
. "$GRADCOMP_SRC/tests/support/tap.sh"
unset CC CFLAGS CPPFLAGS LDFLAGS LIBS AR NVCC CUDA_ARCHS PKG_CONFIG DESTDIR 2>/dev/null

in_part 1 2 || skip_all 'it runs every other day'
version=$(cat "$GRADCOMP_SRC/VERSION")
archive=gradcomp-$version.tar.gz
none="--without-slurm --without-pmix --without-cuda --without-nccl --without-verbs --without-nfs --without-jansson
--without-openmpi --without-mpich"
mkdir "$tmp/out"
cd "$tmp/out" || exit 1
# shellcheck disable=SC2086
check "configure" "$GRADCOMP_SRC/configure" $none
check "make dist" make dist
cp "$archive" "$tmp/first.tar.gz"
check "make dist again" make dist
check "... gives the same archive" cmp "$archive" "$tmp/first.tar.gz"
is "everything is below one folder" "$(tar -tzf "$archive" | grep -v "^gradcomp-$version/")" ""
is "nothing that was built is in it" \
	"$(tar -tzf "$archive" | grep -E '\.(o|so|a|pyc)$|^[^/]*/(config\.(mk|log|status)|Makefile)$|^[^/]*/_?build/')" ""
tar -xzf "$archive" -C "$tmp"

cc=cc
if command -v clang >/dev/null; then cc=clang; else skip "build with clang" "clang is not installed"; fi
cd "$tmp/gradcomp-$version" || exit 1
find . | sort >"$tmp/before"
# shellcheck disable=SC2086
check "configure in the source folder with $cc" ./configure $none CC=$cc CFLAGS=-O0 --enable-werror
check "make -j" make -j4
is "what it made is in _build, and a makefile" \
	"$(find . -mindepth 1 ! -path './_build/*' | sort | comm -13 "$tmp/before" - | tr '\n' ' ')" \
	"./Makefile ./_build "
check "nothing is left to do" make -q
check "... in _build either" make -q -C _build
check "the command runs" _build/bin/gradcomp version

# ---- dependencies

made () { make V=1 -n | grep -o ' -c -o [^ ]* ' | sed 's|.*/_build/obj/||; s/ $//' | sort; }
sleep 1
touch -r include/gradcomp/abi.h "$tmp/date"
touch include/gradcomp/abi.h
users=$(made)
like "a changed header: its users are compiled again (library)" "$users" runtime/base/error.o
like "... (plugins)" "$users" plugins/compressors/none.o
check "make of one of them" make "$PWD/_build/obj/plugins/compressors/none.o"
is "... and that one is done" "$(made)" "$(printf '%s\n' "$users" | grep -v '^plugins/compressors/none.o$')"
# With its old date back nothing else is out of date.
touch -r "$tmp/date" include/gradcomp/abi.h
touch runtime/base/error.c
is "a changed file: it alone" "$(made)" runtime/base/error.o
check "make" make
check "nothing is left to do again" make -q
echo 9.8.7 >VERSION
check "make of a part of the library after a change of VERSION" make "$PWD/_build/obj/runtime/base/error.o"
check "... configures again" grep -q '"9.8.7"' _build/gradcomp_config.h
like "... and the library would be of that version" "$(make V=1 -n "$PWD/_build/lib/libgradcomp.so")" _build/lib/libgradcomp.so.9.8.7
echo "$version" >VERSION

check "make dist without git" make dist
is "... has the same files" "$(tar -tzf "_build/$archive" | sort)" "$(tar -tzf "$tmp/first.tar.gz" | sort)"
check "make distclean" make distclean
is "... leaves the source folder as it was" "$(find . | sort | comm -3 "$tmp/before" -)" ""

# ---- the checks of the makefile itself

cd "$tmp/out" || exit 1
refuse "CHECK_TESTS that matches nothing" make check CHECK_TESTS='tests/unit/no-such-*'
like "... says so" "$said" "no test matches"
is "... before anything is built" "$(find "$tmp/out" -name '*.o')" ""
done_testing
