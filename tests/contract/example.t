#!/bin/sh
# examples/plugin as its author would do it: a copy of the folder, installed
# headers and SDK, pkg-config and make; then gradcomp plugin-check.
set -u
: "${GRADCOMP_BUILD:?}" "${GRADCOMP_SRC:?}"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
n=0
ok () {
	status=$1
	shift
	n=$((n + 1))
	[ "$status" -eq 0 ] && echo "ok $n - $*" || echo "not ok $n - $*"
}

if ! command -v pkg-config >/dev/null; then
	echo "1..0 # SKIP pkg-config is missing"
	exit 0
fi
mkdir -p "$work/prefix/include" "$work/prefix/lib/pkgconfig" &&
	cp -R "$GRADCOMP_SRC/include/gradcomp" "$work/prefix/include/" &&
	cp "$GRADCOMP_BUILD/lib/libgradcomp-sdk.a" "$work/prefix/lib/" &&
	sed "s|^prefix=.*|prefix=$work/prefix|; s|^\(libdir\)=.*|\1=$work/prefix/lib|; s|^\(includedir\)=.*|\1=$work/prefix/include|" \
		"$GRADCOMP_BUILD/gradcomp-sdk.pc" >"$work/prefix/lib/pkgconfig/gradcomp-sdk.pc" &&
	cp -R "$GRADCOMP_SRC/examples/plugin" "$work/plugin" && chmod -R u+w "$work/plugin"
ok $? "a prefix with headers, SDK and gradcomp-sdk.pc"

PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig
export PKG_CONFIG_PATH
make -C "$work/plugin" CFLAGS='-O2 -Wall -Wextra -Werror' install >"$work/log" 2>&1
ok $? "builds and installs with those alone" || :
sed 's/^/# /' "$work/log"
for name in compressors/bf16_ef compressors/cyclic compressors/delta compressors/fewbits compressors/loudest compressors/shared_step compressors/slim compressors/upper compressors/peaks collectives/star; do
	so=$work/prefix/lib/gradcomp/$name.so
	kind=${name%/*} name=${name#*/}
	ls "$so" >"$work/said"
	ok $? "$name is where gradcomp looks for it"
	"$GRADCOMP_BUILD/bin/gradcomp" plugin-check "$so" >"$work/said"
	ok $? "$name keeps the rules ($(tail -n 1 "$work/said"))"
	grep "^FAIL" "$work/said" | sed 's/^/# /'
	[ "$(nm -D --defined-only "$so" | awk '{ print $3 }')" = "gradcomp_${kind%s}_v1" ]
	ok $? "$name exports its descriptor alone"
done

# What is linked into a plugin meets nobody else's.
readelf -Ws "$GRADCOMP_BUILD/lib/libgradcomp-sdk.a" |
	awk '$5 == "GLOBAL" && $7 != "UND" { print $8, $6 }' >"$work/symbols"
[ -s "$work/symbols" ] && ! grep -v '^sdk_[a-z_]* HIDDEN$' "$work/symbols"
ok $? "symbols of the SDK begin with sdk_ and are hidden"

# What `gradcomp new` makes builds and keeps the rules as it is.
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
PATH=$GRADCOMP_BUILD/bin:$PATH
mkdir "$work/new" && cd "$work/new" || exit 1
made () {
	what=$1
	shift
	"$gradcomp" new "$@" --examples "$GRADCOMP_SRC/examples/plugin" >"$work/said" 2>&1 &&
		make -C "$2" CFLAGS='-O2 -Wall -Wextra -Werror' check install >>"$work/said" 2>&1 &&
		[ -e "$work/prefix/lib/gradcomp/$1s/$2.so" ] && ! grep -nw "$what" "$2"/Makefile "$2/$2".c*
	ok $? "gradcomp new $*: builds, keeps the rules and is installed, and nothing in it is called $what"
	grep -E '^FAIL|error|No ' "$work/said" | sed 's/^/# /'
}
made cyclic compressor mine
made fewbits compressor mine2 --pattern gathered
made loudest compressor mine_3 --pattern merged
made upper compressor my4 --pattern coded
made slim compressor my_6 --pattern lowrank
made peaks compressor my_5 --pattern gathered --cxx
made star collective our_star
refused () {
	words=$1
	shift
	! "$gradcomp" new "$@" >"$work/said" 2>&1 && grep -q -- "$words" "$work/said" && ! [ -e there ]
	ok $? "gradcomp new $*: refused ($words)"
}
refused 'cannot make the folder mine' compressor mine --examples "$GRADCOMP_SRC/examples/plugin"
refused 'is no name for a plugin' compressor ../there
refused 'is no name for a plugin' compressor There
refused 'has another meaning for' compressor encode --examples "$GRADCOMP_SRC/examples/plugin"
refused 'summed, gathered, merged, coded or lowrank' compressor there --pattern added
refused 'it has none' collective there --pattern summed
refused '--pattern gathered --cxx' compressor there --cxx
refused '--examples names its folder' compressor there --examples /nowhere
refused 'usage:' compressor
echo "1..$n"
