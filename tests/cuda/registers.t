#!/bin/sh
# Registers, spills and shared memory of every kernel, as ptxas gave them when this build was
# made, against budgets: what a change costs on a GPU shows where there is none.
# shellcheck source=tests/support/tap.sh disable=SC2154
. "$GRADCOMP_SRC/tests/support/tap.sh"

said=$GRADCOMP_BUILD/obj/runtime/operators/cuda
[ -n "$(sed -n 's/^NVCC = *//p' "$GRADCOMP_BUILD/config.mk")" ] || skip_all "this build was configured without CUDA"
[ -f "$said/topk.cu.ptxas" ] || skip_all "this build was made without CUDA"

# One line a kernel and architecture: NAME ARCH REGISTERS SPILLED STACK SHARED
awk '
	/Compiling entry function/ {
		split($0, part, "\047")
		name = part[2]; arch = part[4]
	}
	/bytes stack frame/ { stack = $1; spilled = $5 }
	/ptxas info *: Used/ {
		registers = shared = 0
		for (i = 1; i <= NF; i++) {
			if ($(i + 1) ~ /^registers/) registers = $i
			if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/) shared = $i
		}
		if (name != "") print name, arch, registers, spilled, stack, shared
		name = ""
	}' "$said"/*.ptxas >"$tmp/kernels"

# The first line that fits a kernel is its budget: PATTERN REGISTERS SPILLED STACK SHARED.
# REGISTERS may be two numbers, A/B: B is for sm_90 and sm_100, whose multiprocessors have 2048 threads.
# A block has 256 threads, of which 65536 registers hold eight blocks at 32, four at 64, two at 128.
cat >"$tmp/budgets" <<'END'
# 512 threads, three blocks or four: all threads that a processor has.
4take 42/32 0 0 512
7collect 42/32 0 0 512
# 512 threads, of which a processor has one block at a time: sixteen sums in double a thread.
12ortho_kernel 128 0 0 0
11gram_kernel 128 0 0 0
12split_kernel 128 0 0 0
11fill_kernel8matrices 128 0 0 9728
15first_histogram 48 0 0 20480
# A thread has rows of two factors, or sums of several rows by all columns, in registers.
13finish_kernelILi64 184 0 0 16384
13finish_kernelILi32 128 0 0 8192
13finish_kernel 96 0 0 4096
# Tiles of both matrices, the next ones and sixteen sums in registers: two blocks.
8mq_tiled 128 0 0 25600
9mtp_tiled 128 0 0 33792
9mq_kernelILi64 128 0 0 17408
9mq_kernel 128 0 0 17408
10mtp_kernel 80 0 0 12288
# Sixteen bytes of three arrays, two at a time.
hhhLi16ELi2 80 0 0 0
# One double or pointer that does not stay in registers.
# Thirty-two numbers a lane.
14quantise_shortILi8 80 0 0 0
11each_kernelI7rebuilt 64 8 8 0
11each_kernelI12float8_value 64 8 8 0
11load_kernel 64 8 8 18432
# A chunk of 64 x 64 numbers and the basis of a side, of 512 threads.
dct_topk_kernel 64 0 0 36864
dct_back_kernel 64 0 0 36864
# A tile of what is summed, of which three fit.
17sparse_sum_kernel 88/64 0 0 34816
* 64 0 0 18432
END

awk '
	function limit(given, arch, part) { return split(given, part, "/") > 1 && arch ~ /^sm_(90|100)$/ ? part[2] : part[1] }
	NR == FNR { if ($0 !~ /^#/) { n++; pattern[n] = $1; for (i = 2; i <= 5; i++) most[n, i] = $i } next }
	{
		for (b = 1; b < n && !index($1, pattern[b]); b++) ;
		used[b] = 1
		over = ""
		registers = limit(most[b, 2], $2)
		if ($3 + 0 > registers + 0) over = over " registers: " $3 " of " registers
		if ($4 + 0 > most[b, 3]) over = over " bytes spilled: " $4 " of " most[b, 3]
		if ($5 + 0 > most[b, 4]) over = over " bytes of stack: " $5 " of " most[b, 4]
		if ($6 + 0 > most[b, 5]) over = over " bytes of shared memory: " $6 " of " most[b, 5]
		if (over != "") print $1, $2 ":" over
	}
	END { for (b = 1; b <= n; b++) if (!used[b]) print "no kernel fits the budget", pattern[b] }
' "$tmp/budgets" "$tmp/kernels" >"$tmp/over"

count=$(wc -l <"$tmp/kernels")
archs=$(sed -n 's/^CUDA_ARCHS = *//p' "$GRADCOMP_BUILD/config.mk")
[ "$count" -gt 100 ]
tap_result $? "ptxas has told of $count kernels"
for arch in $archs; do
	grep -q " sm_$arch " "$tmp/kernels"
	tap_result $? "for sm_$arch, too"
done
[ ! -s "$tmp/over" ]
tap_result $? "every kernel keeps to its budget"
[ ! -s "$tmp/over" ] || note "$(head -n 40 "$tmp/over")"
done_testing
