#!/bin/sh
# A build with nothing but a C compiler, inih and xxHash, and what install and uninstall
# do with it.
# shellcheck source=tests/support/tap.sh disable=SC2317
. "$GRADCOMP_SRC/tests/support/tap.sh"
unset CC CFLAGS CPPFLAGS LDFLAGS LIBS AR NVCC CUDA_ARCHS PKG_CONFIG DESTDIR 2>/dev/null

prefix=$tmp/prefix
mkdir "$tmp/build"
cd "$tmp/build" || exit 1
check "configure without any optional library" "$GRADCOMP_SRC/configure" --prefix="$prefix" CFLAGS=-O0 \
	--without-slurm --without-pmix --without-cuda --without-nccl --without-verbs --without-nfs --without-jansson --without-zfp \
	--without-lz4 --without-zstd --without-openmpi --without-mpich
check "make" make -j2
check "nothing is left to do after it" make -q
is "no PMIx module" "$(ls lib/gradcomp/bootstrap 2>/dev/null)" ""
is "no compressor without its library" "$(ls lib/gradcomp/compressors/zfp.so lib/gradcomp/compressors/lossless.so 2>/dev/null)" ""
is "no SPANK plugin" "$(ls lib/slurm 2>/dev/null)" ""
is "nothing for MPI" "$(ls lib/gradcomp/pmpi 2>/dev/null)" ""
check "the command runs in the build folder" bin/gradcomp version
like "... and says the version" "$said" "$(cat "$GRADCOMP_SRC/VERSION")"
if ldd bin/gradcomp >"$tmp/ldd"; then
	unlike "the command needs no PMIx" "$(cat "$tmp/ldd")" pmix
	unlike "the command needs no jansson" "$(cat "$tmp/ldd")" jansson
fi

# ---- the shared objects

lib=lib/libgradcomp.so
like "soname" "$(readelf -d $lib)" "soname: [libgradcomp.so.0]"
# Without the version node, and without what names it.
exported=$(nm -D --defined-only $lib | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }')
is "libgradcomp exports gradcomp_* alone" "$(printf '%s\n' "$exported" | grep -v '^gradcomp_')" ""
is "... exactly what the headers declare" \
	"$(printf '%s\n' "$exported" | sort)" \
	"$(cat "$GRADCOMP_SRC"/include/gradcomp/*.h | cc -fpreprocessed -dD -E -P -x c - 2>/dev/null |
		tr '\n' ' ' | grep -o 'GRADCOMP_EXPORT [^;]*;' | grep -o 'gradcomp_[a-z0-9_]*(' | tr -d '(' | sort -u)"
like "relocations are read-only" "$(readelf -l $lib)" GNU_RELRO
like "... from the start" "$(readelf -d $lib)" NOW
like "the command is position-independent" "$(readelf -h bin/gradcomp)" DYN
for so in lib/gradcomp/compressors/*.so; do
	is "${so#lib/gradcomp/} exports its descriptor alone" "$(nm -D --defined-only "$so" | awk '{ print $3 }')" \
		gradcomp_compressor_v1
	unlike "${so#lib/gradcomp/} does not need libgradcomp" "$(readelf -d "$so")" libgradcomp
done
for so in lib/gradcomp/collectives/*.so; do
	is "${so#lib/gradcomp/} exports its descriptor alone" "$(nm -D --defined-only "$so" | awk '{ print $3 }')" \
		gradcomp_collective_v1
	unlike "${so#lib/gradcomp/} does not need libgradcomp" "$(readelf -d "$so")" libgradcomp
done

# ---- staged

list () { (cd "$1" && find . \( -type f -o -type l \) | sort); }
check "install below DESTDIR" make install DESTDIR="$tmp/stage"
is "... and nowhere else" "$(ls -d "$prefix" 2>/dev/null)" ""
is "... in the prefix alone" "$(cd "$tmp/stage" && find . -type f ! -path ".$prefix/*")" ""
staged=$tmp/stage$prefix
for file in bin/gradcomp lib/libgradcomp.so.0 lib/pkgconfig/gradcomp.pc include/gradcomp/gradcomp.h \
	lib/libgradcomp-sdk.a lib/pkgconfig/gradcomp-sdk.pc include/gradcomp/sdk.h include/gradcomp/sdk/lowrank.h \
	lib/gradcomp/compressors/none.so lib/gradcomp/collectives/ring.so etc/gradcomp/gradcomp.conf \
	lib/gradcomp/python/gradcomp/__init__.py; do
	check "installed: $file" test -f "$staged/$file"
done
is "no folder of the build is named in the configuration" \
	"$(grep -rl -e "$tmp/stage" -e "$GRADCOMP_SRC" "$staged/etc" "$staged/lib/pkgconfig")" ""
is "... nor in what was compiled" "$(grep -rl -e "$tmp/build" -e "$GRADCOMP_SRC" "$staged/bin" "$staged/lib" "$staged/include")" ""
is "nothing has a run-time path: the command has the library in it, plugins and modules need none" \
	"$(find "$staged/bin" "$staged/lib" -type f | while read -r file; do
		! readelf -d "$file" 2>/dev/null | grep -qE 'RPATH|RUNPATH' || echo "$file"
	done)" ""
# shellcheck disable=SC2016 # backticks of Markdown
dead=$(cd "$staged/share/doc/gradcomp" && for document in *.md */*.md; do
	sed -e '/^    /d' -e 's/`[^`]*`//g' "$document" | grep -oE '\]\([^) ]+\)' | sed 's/^](//; s/)$//; s/#.*//' | while read -r link; do
		case $link in '' | http*://*) ;; /*) [ -e "$tmp/stage$link" ] || echo "$document: $link" ;; *) [ -e "$(dirname "$document")/$link" ] || echo "$document: $link" ;; esac
	done
done)
is "links of the installed documents lead somewhere" "$dead" ""
like "... to headers, too" "$(cat "$staged/share/doc/gradcomp/README.md")" "]($prefix/include/gradcomp/gradcomp.h)"
is "no @variable@ is left in it" "$(grep -rl '@[a-z]*@' "$staged/etc" "$staged/lib/pkgconfig")" ""
list "$tmp/stage" >"$tmp/first"
# Whether the library is there, and whole, at any moment.
cat >"$tmp/watch.c" <<'WATCH'
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct stat first, now;
	long missing = 0, looks = 0;

	if (argc < 3 || stat(argv[1], &first))
		return 2;
	for (; access(argv[2], F_OK); looks++)
		missing += stat(argv[1], &now) || now.st_size != first.st_size;
	printf("%s\n", !looks ? "nobody looked" : missing ? "missing" : "whole");
	return 0;
}
WATCH
cc -O1 -o "$tmp/watch" "$tmp/watch.c" || exit 1
"$tmp/watch" "$staged/lib/libgradcomp.so.$(cat "$GRADCOMP_SRC/VERSION")" "$tmp/stop" >"$tmp/watched" &
for i in 1 2; do
	check "install again, $i" make install DESTDIR="$tmp/stage"
done
: >"$tmp/stop"
wait $!
is "... the library is there at every moment" "$(cat "$tmp/watched")" whole
is "... is the same" "$(list "$tmp/stage")" "$(cat "$tmp/first")"
check "uninstall" make uninstall DESTDIR="$tmp/stage"
is "... leaves nothing" "$(find "$tmp/stage" -mindepth 1)" ""

check "install below a folder with a blank in its name" make install DESTDIR="$tmp/st age"
is "... is the same" "$(list "$tmp/st age")" "$(cat "$tmp/first")"
check "uninstall there" make uninstall DESTDIR="$tmp/st age"
is "... leaves nothing" "$(find "$tmp/st age" -mindepth 1)" ""

# Users can read everything, and nobody else can write it, whatever the umask.
install_under () (umask "$1" && make install DESTDIR="$tmp/stage")
for mask in 077 002; do
	check "install with umask $mask" install_under $mask
	is "... modes" "$(find "$tmp/stage" -mindepth 1 ! -type l ! -perm 755 ! -perm 644 -printf '%m %P\n')" ""
	check "uninstall" make uninstall DESTDIR="$tmp/stage"
done

mkdir -p "$staged/lib" "$staged/etc/gradcomp"
echo theirs >"$staged/lib/libother.so"
echo '# ours' >"$staged/etc/gradcomp/gradcomp.conf"
check "install beside others' files" make install DESTDIR="$tmp/stage"
is "... keeps an edited configuration" "$(cat "$staged/etc/gradcomp/gradcomp.conf")" "# ours"
check "... and puts the new one beside it" test -f "$staged/etc/gradcomp/gradcomp.conf.new"
check "uninstall again" make uninstall DESTDIR="$tmp/stage"
is "... leaves others' files and the edited one" "$(list "$staged")" "./etc/gradcomp/gradcomp.conf
./lib/libother.so"

# ---- in place, and used from there

check "install in the prefix" make install
if command -v python3 >/dev/null; then
	check "... modules for Python are compiled" test -n "$(ls "$prefix"/lib/gradcomp/python/gradcomp/__pycache__/torch.*.pyc)"
else
	skip "... modules for Python are compiled" "no python3"
fi
check "the installed command finds its library" "$prefix/bin/gradcomp" version
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
if command -v pkg-config >/dev/null; then
	is "gradcomp.pc: version" "$(pkg-config --modversion gradcomp)" "$(cat "$GRADCOMP_SRC/VERSION")"
	is "gradcomp.pc: plugins" "$(pkg-config --variable=plugindir gradcomp)" "$prefix/lib/gradcomp"
	printf '%s\n' '#include <gradcomp/gradcomp.h>' 'int main(void) { return !gradcomp_version(); }' >"$tmp/use.c"
	# shellcheck disable=SC2046
	check "a program builds with gradcomp.pc" cc -o "$tmp/use" "$tmp/use.c" $(pkg-config --cflags --libs gradcomp)
	check "... and runs" env LD_LIBRARY_PATH="$prefix/lib" "$tmp/use"
else
	skip "gradcomp.pc" "pkg-config is not installed"
fi
if command -v cmake >/dev/null; then
	mkdir "$tmp/cmake"
	cat >"$tmp/cmake/CMakeLists.txt" <<-'EOF'
		cmake_minimum_required(VERSION 3.13)
		project(user C)
		find_package(gradcomp 0.1 REQUIRED)
		add_executable(user user.c)
		target_link_libraries(user gradcomp::gradcomp)
		add_library(fewbits MODULE fewbits.c)
		set_target_properties(fewbits PROPERTIES PREFIX "" C_VISIBILITY_PRESET hidden)
		target_compile_options(fewbits PRIVATE -ffp-contract=off)
		target_link_libraries(fewbits gradcomp::sdk)
	EOF
	cp "$prefix/share/gradcomp/examples/fewbits.c" "$tmp/cmake/"
	printf '#include <gradcomp/gradcomp.h>\n#include <stdio.h>\nint main(void) { return puts(gradcomp_version()) < 0; }\n' >"$tmp/cmake/user.c"
	check "find_package(gradcomp)" cmake -S "$tmp/cmake" -B "$tmp/cmake/b" "-DCMAKE_PREFIX_PATH=$prefix"
	check "... links" cmake --build "$tmp/cmake/b"
	is "... and runs" "$("$tmp/cmake/b/user")" "$(cat "$GRADCOMP_SRC/VERSION")"
	check "... a plugin with gradcomp::sdk keeps the rules" "$prefix/bin/gradcomp" plugin-check "$tmp/cmake/b/fewbits.so"
	sed -i 's/gradcomp 0.1/gradcomp 7.3/' "$tmp/cmake/CMakeLists.txt"
	refuse "... another version is refused" cmake -S "$tmp/cmake" -B "$tmp/cmake/b7" "-DCMAKE_PREFIX_PATH=$prefix"
else
	skip "CMake's files" "cmake is not installed"
fi
check "uninstall from the prefix" make uninstall
is "... leaves nothing" "$(ls -d "$prefix" 2>/dev/null)" ""
check "... and touches nothing above it" test -d "$tmp"
check "make clean" make clean
check "make distclean" make distclean
is "... leaves nothing of the build" "$(find "$tmp/build" -mindepth 1)" ""
done_testing
