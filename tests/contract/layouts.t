#!/bin/sh
# The ABI's promise (gradcomp/abi.h), held by what earlier releases were: structures, codes and functions of their
# headers in tests/golden/abi lie in today's where they lay there, and plugins that are built with those headers load,
# keep the rules of their ABI, and run in a job that looks at every step.
#
# A release that appends something to a public structure leaves its headers there, in a folder named by its commit.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp golden=$GRADCOMP_SRC/tests/golden/abi
: "${CC:=cc}"
command -v "$CC" >/dev/null || skip_all "there is no C compiler '$CC'"

if command -v python3 >/dev/null; then
	abidiff=$(command -v abidiff >/dev/null && echo abidiff)
	[ "$abidiff" ] || skip "types as abidiff sees them" "abidiff is not installed (Debian: abigail-tools)"
	# shellcheck disable=SC2086
	python3 "$GRADCOMP_SRC/tests/contract/layouts.py" "$GRADCOMP_SRC" "$tmp" "$CC" $abidiff >"$tmp/out" 2>&1
	tap_result $? "all headers are compared"
	while IFS= read -r line; do
		case $line in
		"ok "*) tap_result 0 "${line#ok }" ;;
		"not ok "*) tap_result 1 "${line#not ok }" ;;
		*) note "${line#\# }" ;;
		esac
	done <"$tmp/out"
else
	skip "headers of earlier releases" "python3 is not installed"
fi

# plugin INCLUDE SOURCE INTO
plugin () {
	"$CC" -std=gnu11 -O2 -fPIC -shared -fvisibility=hidden -ffp-contract=off -I"$1" -o "$3" "$2"
}

for release in "$golden"/*/; do
	release=${release%/} name=${release##*/} in=$tmp/$name
	mkdir -p "$in/compressors" "$in/collectives"
	check "$name: plugins are built with its headers" plugin "$release" "$GRADCOMP_SRC/tests/golden/abi1_cyclic.c" "$in/compressors/cyclic.so"
	plugin "$release" "$golden/halves.c" "$in/compressors/halves.so"
	plugin "$release" "$golden/star.c" "$in/collectives/star.so"
	# Operators that ABI 3 has no more: the host has them for those who were built with them.
	plugin "$release" "$golden/eleven.c" "$in/compressors/eleven.so"
	for spec in "cyclic:every=3 star" "halves ring" "eleven ring"; do
		check "$name: ${spec% *} over ${spec#* } in a job" env GRADCOMP_PLUGIN_PATH="$in:$GRADCOMP_BUILD/lib/gradcomp" GRADCOMP_VERIFY=1 \
			"$gradcomp" run -n 2 --gradcomp="${spec% *}" --gradcomp-collective="${spec#* }" "$gradcomp" bench reduce --tensors 64x64,7 --iters 3
	done
done

first=$tmp/66e4a2f
for so in compressors/cyclic compressors/eleven collectives/star; do
	check "66e4a2f: $so keeps the rules" "$gradcomp" plugin-check --ranks 2 "$first/$so.so"
done
check "66e4a2f: a code is not held to what ABI 2 brought" "$gradcomp" plugin-check --ranks 2 "$first/compressors/halves.so"
like "but warned" "$said" "warn 19 code          gradients whose sum overflows"
plugin "$GRADCOMP_SRC/include" "$golden/halves.c" "$tmp/halves.so"
refuse "the same code, built today" "$gradcomp" plugin-check --ranks 2 "$tmp/halves.so"
like "is held to it" "$said" "FAIL 19 code          gradients whose sum overflows"
done_testing
