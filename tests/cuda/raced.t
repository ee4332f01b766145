#!/bin/sh
# The CUDA kernels against a happens-before of our own (races.h), without a GPU: the comparisons of operators.c find no
# race, with grids of two blocks at most, so that loops over a grid run more than once. Then each barrier in turn is
# taken out, a sixteenth of them a day, and in check-long all: that is found, or the barrier is in a list below.
# shellcheck source=tests/support/tap.sh disable=SC2154
. "$GRADCOMP_SRC/tests/support/tap.sh"

src=$GRADCOMP_SRC cuda=$GRADCOMP_SRC/runtime/operators/cuda
cxx=$("$src/tests/fake/compile" -c) || skip_all "there is no C++ compiler"
[ "$(uname -m)" = x86_64 ] || skip_all "the emulation switches stacks on x86-64 only"
command -v "${CC:=cc}" >/dev/null || skip_all "there is no C compiler '$CC'"
for tool in addr2line nm; do
	command -v $tool >/dev/null || skip_all "there is no $tool"
done
echo 'void f(int *p) { *p = 1; }' >"$tmp/t.cpp"
"$cxx" -O1 -fsanitize=thread -c -o "$tmp/t.o" "$tmp/t.cpp" 2>/dev/null || :
nm "$tmp/t.o" 2>/dev/null | grep -q __tsan_write4 ||
	skip_all "$cxx has no -fsanitize=thread"

# What is reported and is no fault: GROUP KIND KERNEL MEMORY, and why.
cat >"$tmp/allowed" <<'END'
chunks unwritten dct_topk_kernel tile: a lane of columns that the chunk lacks has sums of rubbish, which nobody takes
chunks unwritten dct_topk_kernel basis: the same
launches unwritten dct_topk_kernel tile: the same
launches unwritten dct_topk_kernel basis: the same
low_rank unwritten split_kernel dynamic: columns are copied whole, and of kept[] only the first `count` are read
launches unwritten split_kernel dynamic: the same
damage write-read sparse_sum_kernel tile: an index twice in a rank's pairs is a fault, told by a word; the sums are not used
damage read-write sparse_sum_kernel tile: the same
damage write-write sparse_sum_kernel tile: the same
END

# Barriers whose removal makes no race: FILE FUNCTION NUMBER, and why. They keep a function right whoever calls it.
cat >"$tmp/spare" <<'END'
orthonormalise.cu invert 1: nothing is read before the first barrier of the loop
orthonormalise.cu least_row 3: the room is written again after barriers of fill_column() only
orthonormalise.cu ortho_kernel 1: `smallest` is written again at the end of factor() only
orthonormalise.cu repair_column 4: fill_column() has one more, and writes nothing before that is read here
product.cu tiled_sum 5: both callers read each number by the thread that wrote it
select.cu first_histogram 3: count[0] is read by the thread that wrote it
select.cu find_next 1: find_bin() has barriers before the word is written again
END

# Where the barriers are: FILE, the source that is compiled for it, the groups that enter it.
files="blocks.cu blocks.cu chunks
codes.cu codes.cu codes
columns.cu columns.cu chunks
cuda_device.h sums.cu elements
cuda_select.h topk.cu selection
dct.cu dct.cu chunks
finish.cu finish.cu low_rank
index.cu index.cu selection
levels.cu levels.cu elements codes
orthonormalise.cu orthonormalise.cu low_rank
product.cu product.cu low_rank
quantise.cu quantise.cu codes
select.cu select.cu selection
sign.cu sign.cu codes
small_float.cu small_float.cu elements codes
sparse.cu sparse.cu tensors selection
tensors.cu tensors.cu tensors
topk.cu topk.cu selection"
groups="elements selection low_rank codes tensors damage launches chunks"

flags="-I$tmp/cuda -g1 -fno-pie -w -ffp-contract=off -fno-strict-aliasing -DGRADCOMP_EMULATE
	-DGRADCOMP_RACES -I$src/include -I$src/runtime -I$src -I$src/tests/cuda"
flags=$(printf '%s' "$flags" | tr -s '\n\t' ' ')
kernel_flags="-std=c++17 -x c++ -O1 -fsanitize=thread $flags"
libs="$GRADCOMP_BUILD/lib/libgradcomp.a $(sed -n 's/^LIB_LIBS *=//p' "$GRADCOMP_BUILD/config.mk") -ldl -lrt -lm -lpthread"

# Grids of two blocks: with other headers, whose barriers are taken out later.
mkdir -p "$tmp/cuda/operators/cuda"
two_blocks='s/blocks > most ? most : blocks/blocks > races_blocks(most) ? races_blocks(most) : blocks/'
sed "$two_blocks" "$cuda/cuda_device.h" >"$tmp/cuda/operators/cuda/cuda_device.h"
if cmp -s "$cuda/cuda_device.h" "$tmp/cuda/operators/cuda/cuda_device.h"; then
	tap_result 1 "blocks_for() can be made to give two blocks"
	done_testing
fi

build () {
	for f in "$cuda"/*.cu; do
		case $f in */missing.cu) continue ;; esac
		echo "$cxx $kernel_flags -c -o $tmp/${f##*/}.o $f"
	done >"$tmp/commands"
	for f in "$src"/tests/cuda/*.cpp; do
		echo "$cxx -std=c++17 -O3 $flags -c -o $tmp/${f##*/}.o $f"
	done >>"$tmp/commands"
	for f in "$src"/tests/cuda/*.c "$src/tests/support/tap.c"; do
		echo "$CC -std=gnu11 -O1 $flags -D_GNU_SOURCE -c -o $tmp/${f##*/}.o $f"
	done >>"$tmp/commands"
	xargs -P 2 -I '{}' sh -c '{}' <"$tmp/commands" || return
	# shellcheck disable=SC2086
	"$cxx" -no-pie -o "$tmp/test" "$tmp"/*.cu.o "$tmp"/*.cpp.o "$tmp"/*.c.o $libs
}
# Place 0x... of a program as "function file:line", the innermost and what it is inlined into. An access is before the
# address that it returns to.
place () {
	addr2line -e "$1" -f -C -s -i -p "$(printf '%#x' $(($2 - 1)))" | sed 's/^void //; s/(inlined by)/ in/; s/<.*>//; s/([^)]*)//' | tr -d '\n'
}
kernel_of () {
	addr2line -e "$1" -f -C -s "$2" | sed 's/^void //; s/[<(].*//; q'
}
# The functions of a source with a barrier: FILE FUNCTION NUMBER LINE; with `kernels` its kernels: FILE KERNEL
functions () {
	awk -v want="${1-}" '
		FNR == 1 { header = ""; file = FILENAME; sub(/.*\//, "", file) }
		/^{/ {
			gsub(/__launch_bounds__\([^)]*\)/, "", header)
			match(header, /[a-z_0-9]+\(/)
			name = substr(header, RSTART, RLENGTH - 1); n = 0
			if (want == "kernels" && header ~ /__global__/) print file, name
		}
		/^$|^}|^#|^\/\*|^ \*/ { header = ""; next }
		{ header = header " " $0 }
		want != "kernels" && /__sync(threads|warp)\(\);/ { print file, name, ++n, FNR }' "$cuda"/*.cu "$cuda"/*.h | grep -v '^missing\.cu ' 
}

if ! said=$(build 2>&1); then
	tap_result 1 "the kernels compile for the host"
	note "$(printf '%s\n' "$said" | tail -n 25)"
	done_testing
fi

# The same numbers every time, so that a barrier is found, or not, every time.
TEST_SEED=${TEST_SEED:-1}
export TEST_SEED
run () { "$tmp/test" "$1" >"$tmp/said.$1" 2>&1 || echo "status $?" >>"$tmp/said.$1"; }
for group in $groups; do
	run "$group"
	[ "$(grep -c '^not ok' "$tmp/said.$group")" = 0 ]
	tap_result $? "$group: the host's results" || note "$(grep -A5 '^not ok' "$tmp/said.$group" | tail -n 25)"
	: >"$tmp/wrong"
	sed -n 's/^# race: //p' "$tmp/said.$group" >"$tmp/races"
	while read -r kind kernel at before where offset thread block other other_block times; do
		name="$group $kind $(kernel_of "$tmp/test" "$kernel") $where"
		if grep -q "^$name:" "$tmp/allowed"; then
			echo "$name" >>"$tmp/seen"
		else
			printf '%s + %s, %s times\n  thread %s of block %s: %s\n  thread %s of block %s: %s\n' "$name" "$offset" "$times" \
				"$thread" "$block" "$(place "$tmp/test" "$at")" "$other" "$other_block" "$(place "$tmp/test" "$before")"
		fi
	done <"$tmp/races" >"$tmp/wrong"
	looked=$(sed -n 's/^# looked: \(.*\), [0-9]* races$/\1/p' "$tmp/said.$group")
	[ -n "$looked" ] && [ ! -s "$tmp/wrong" ]
	tap_result $? "$group: 0 races in ${looked:-nothing}" || note "$(head -n 40 "$tmp/wrong"; tail -n 3 "$tmp/said.$group")"
	tried "${looked%% *}" "accesses of kernels"
done
is "what is allowed is seen" "$(cut -d: -f1 "$tmp/allowed" | sort -u)" "$(sort -u "$tmp/seen")"
sed -n 's/^# kernel: //p' "$tmp"/said.* | sort -u | while read -r kernel; do
	echo "$(place "$tmp/test" $((kernel + 1)) | sed 's/.* at \(.*\):.*/\1/') $(kernel_of "$tmp/test" "$kernel")"
done | sort -u >"$tmp/entered"
is "every kernel was entered" "$(functions kernels | sort -u | comm -23 - "$tmp/entered")" ""

# What memory would have to move, with grids as they are: the tables of the documentation are what was counted.
RACES_COUNT=1 "$tmp/test" traffic >"$tmp/said.traffic" 2>&1
ended=$?
[ $ended = 0 ] && [ "$(grep -c '^ok' "$tmp/said.traffic")" -gt 20 ]
tap_result $? "a sum of P ranks' codes moves 4 + P codes a number" || note "$(grep -A5 '^not ok' "$tmp/said.traffic" | tail -n 25)"
{
	# shellcheck disable=SC2016 # backquotes of Markdown
	sed -n 's/^# traffic: \(.*\) \([0-9.]*\) \([0-9.]*\)$/`\1` | [0-9]* | \2 | \3/p' "$tmp/said.traffic"
	sed -n 's/^# sum: //p' "$tmp/said.traffic"
} | while read -r row; do
	grep -q "^| $row |" "$src/doc/dev/gpu.md" || echo "$row"
done >"$tmp/missing"
is "doc/dev/gpu.md has the bytes that were counted" "$(cat "$tmp/missing")" ""

# A barrier less.
mkdir -p "$tmp/plant/operators/cuda"
plant () {
	rm -f "$tmp"/plant/operators/cuda/*
	awk -v line="$2" 'FNR == line { sub(/__sync(threads|warp)\(\);/, ";") } { print }' "$cuda/$1" |
		sed "$two_blocks" >"$tmp/plant/operators/cuda/$1"
	source=$3
	shift 3
	at=$cuda/$source
	[ ! -e "$tmp/plant/operators/cuda/$source" ] || at=$tmp/plant/operators/cuda/$source
	mv "$tmp/$source.o" "$tmp/$source.whole"
	# shellcheck disable=SC2086
	"$cxx" -I"$tmp/plant" $kernel_flags -c -o "$tmp/$source.o" "$at" &&
		"$cxx" -no-pie -o "$tmp/planted" "$tmp"/*.cu.o "$tmp"/*.cpp.o "$tmp"/*.c.o $libs
	built=$?
	mv "$tmp/$source.whole" "$tmp/$source.o"
	[ $built = 0 ] || return 1
	ended=0
	RACES_STOP=1 "$tmp/planted" "$@" >"$tmp/said.planted" 2>&1 || ended=$?
	grep '^# race: ' "$tmp/said.planted" | grep -v unwritten >"$tmp/races" || :
}
i=0
echo "# PART=$(part)"
functions | sort >"$tmp/barriers"
while read -r file function number line; do
	i=$((i + 1))
	in_part $i 16 || continue
	name="$file: $function() without barrier $number"
	entry=$(printf '%s\n' "$files" | grep "^$file ")
	# shellcheck disable=SC2086
	if ! plant "$file" "$line" ${entry#* }; then
		tap_result 1 "$name compiles"
	elif grep -q "^$file $function $number:" "$tmp/spare"; then
		[ ! -s "$tmp/races" ]
		tap_result $? "$name: no race, as is known"
	elif [ ! -s "$tmp/races" ] && [ $ended -ge 128 ]; then
		# An index that was read too early led out of all memory before a race was seen.
		tap_result 0 "$name: ends with signal $((ended - 128))"
		tried 1 "planted races found"
	else
		[ -s "$tmp/races" ]
		tap_result $? "$name: a race" || continue
		read -r _ _ kind kernel at before where _ <"$tmp/races"
		note "$kind of $where in $(kernel_of "$tmp/planted" "$kernel"): $(place "$tmp/planted" "$at"), $(place "$tmp/planted" "$before")"
		tried 1 "planted races found"
	fi
done <"$tmp/barriers"
done_testing
