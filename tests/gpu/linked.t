#!/bin/sh
# What stands on CUDA and NCCL in this build: it is linked, nothing else is, and where
# there is no GPU it says so. tests/gpu/run goes on from here on a machine with one.
# shellcheck source=tests/support/tap.sh disable=SC2154
. "$GRADCOMP_SRC/tests/support/tap.sh"

src=$GRADCOMP_SRC build=$GRADCOMP_BUILD
conf () { sed -n "s/^$1 = *//p" "$build/config.mk"; }
[ -n "$(conf NVCC)" ] || skip_all "this build was configured without CUDA"
[ -f "$build/lib/gradcomp/device/cuda.so" ] || skip_all "this build was made without CUDA"
command -v "${CC:=cc}" >/dev/null || skip_all "there is no C compiler '$CC'"

needs () { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }
unlike "libgradcomp is not linked with CUDA" "$(needs "$build/lib/libgradcomp.so")" cuda
for module in device/cuda operators/cuda; do
	unlike "$module.so brings the CUDA runtime along, and finds the driver later" \
		"$(needs "$build/lib/gradcomp/$module.so")" cuda
done

# Each source has its text in PTX, and native code for each GPU that was asked for: as cuobjdump says, or the heads of
# what nvcc has put there.
cat >"$tmp/inside.py" <<'END'
import collections, struct, sys
data, found, magic = open(sys.argv[1], "rb").read(), collections.Counter(), struct.pack("<IHH", 0xba55ed50, 1, 16)
at = data.find(magic)
while at >= 0:
    entry = at + 16
    end = entry + struct.unpack_from("<Q", data, at + 8)[0]
    while entry < end:
        kind, _, head, size, _, _, _, _, gpu = struct.unpack_from("<HHIQIIHHI", data, entry)
        found[f"{({1: 'ptx', 2: 'sm'}).get(kind, kind)}_{gpu}"] += 1
        entry += head + size
    at = data.find(magic, end)
print(*(f"{n} {what}" for what, n in found.items()), sep="\n")
END
# shellcheck disable=SC2317 # called below
inside () {
	if command -v cuobjdump >/dev/null; then
		cuobjdump -lelf -lptx "$1" | sed -n 's/.*\.sm_\([0-9]*\)\.cubin$/sm_\1/p; s/.*\.sm_\([0-9]*\)\.ptx$/ptx_\1/p' | sort | uniq -c | sed 's/^ *//'
	else
		python3 "$tmp/inside.py" "$1"
	fi
}
if command -v cuobjdump >/dev/null || command -v python3 >/dev/null; then
	# One more, of no source, is the linker's.
	sources=$(($(find "$src/runtime/operators/cuda" -name '*.cu' | wc -l)))
	is "the operators have PTX for sm_80, and native code for $(conf CUDA_ARCHS)" \
		"$(inside "$build/lib/gradcomp/operators/cuda.so" | grep -v '^1 ' | sort | tr '\n' ' ')" \
		"$({ echo "$sources ptx_80"; for gpu in $(conf CUDA_ARCHS); do echo "$sources sm_$gpu"; done; } | sort | tr '\n' ' ')"
else
	skip "what native code the operators have" "there is neither cuobjdump nor Python"
fi

# So many kernels are loaded when the module is opened.
said=$build/obj/runtime/operators/cuda
if [ -f "$said/topk.cu.ptxas" ] && command -v python3 >/dev/null; then
	for file in "$said"/*.ptxas; do
		sed -n "s/.*Compiling entry function '\\([^']*\\)'.*/\\1/p" "$file" | sort -u
	done >"$tmp/compiled"
	is "every kernel that was compiled is loaded at open" "$(python3 -c "import ctypes, sys
print(ctypes.CDLL(sys.argv[1]).gradcomp_cuda_kernels())" "$build/lib/gradcomp/operators/cuda.so")" $(($(wc -l <"$tmp/compiled")))
else
	skip "every kernel that was compiled is loaded at open" "there is no list of them, or no Python"
fi

flags="-std=gnu11 -D_GNU_SOURCE -O1 -Wall -Wextra -I$src/include -I$src/runtime -I$src"
cudart="$(conf CUDA_LIBS | tr ' ' '\n' | grep '^-L' | tr '\n' ' ') -lcudart_static"
# shellcheck disable=SC2317 # called by check
link () {
	program=$1
	shift
	# shellcheck disable=SC2046,SC2086
	"$CC" $flags $(conf CUDA_CFLAGS) -o "$tmp/$program" "$@" "$build/lib/libgradcomp.a" $cudart $(conf LIB_LIBS) -lm -ldl -lrt -lpthread
}
for program in fake/reducer fake/collective fake/faults fake/group gpu/steps gpu/device gpu/rates cuda/operators; do
	case $program in gpu/rates|cuda/operators) memory=$src/tests/gpu/memory.c ;; *) memory= ;; esac
	check "tests/$program.c is linked with CUDA's own" link "${program#*/}" "$src/tests/$program.c" "$src/tests/support/tap.c" "$src/tests/support/pace.c" \
		${memory:+"$memory"}
done
if said=$("$tmp/device" 2>&1); then
	like "there is a device" "$said" "ok 1 - the device copies"
else
	status=$?
	is "without a device the first program of tests/gpu/run ends with 77" $status 77
	like "and says so in its last line" "$(echo "$said" | tail -n 1)" "1..0 # SKIP no CUDA device"
fi

cat >"$tmp/alone.c" <<'END'
/* One rank with a gradient in GPU memory: what it is told. */
#include <stdio.h>
#include "gradcomp/gradcomp.h"
int main(int argc, char **argv)
{
	const uint64_t dims[] = {4};
	const gradcomp_tensor_desc d = {.name = "w", .dims = dims, .ndim = 1};
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = argc > 1 ? argv[1] : "none",
	                              .collective = argc > 2 ? argv[2] : "ring", .device = GRADCOMP_CUDA};
	gradcomp_error err = {0};
	gradcomp_reducer *red = NULL;
	gradcomp_job *job;
	if (gradcomp_job_create(NULL, &job, &err))
		return 1;
	gradcomp_status st = gradcomp_reducer_create(gradcomp_job_world(job), &d, 1, &o, &red, &err);
	printf("%d %s\n", st, st ? err.text : "");
	gradcomp_reducer_free(red);
	gradcomp_job_free(job, NULL);
	return 0;
}
END
check "a program that asks for GPU memory" link alone "$tmp/alone.c"
GRADCOMP_PLUGIN_PATH=$build/lib/gradcomp
export GRADCOMP_PLUGIN_PATH
if said=$("$tmp/alone" 2>&1) && [ "${said#0}" != "$said" ]; then
	skip "a reducer without a GPU" "there is one: see tests/gpu/run"
else
	like "without a GPU it is told what is not there" "$said" "the CUDA device"
fi
GRADCOMP_PLUGIN_PATH=$tmp
mkdir -p "$tmp/compressors" "$tmp/collectives"
cp "$build/lib/gradcomp/compressors/none.so" "$tmp/compressors/" && cp "$build/lib/gradcomp/collectives/ring.so" "$tmp/collectives/"
# What may have been installed in this build's prefix is not to be found.
sed "s|^#define GRADCOMP_PLUGINDIR .*|#define GRADCOMP_PLUGINDIR \"$tmp\"|" "$build/gradcomp_config.h" >"$tmp/config.h"
check "the same with no prefix" link nowhere -include "$tmp/config.h" "$tmp/alone.c" "$src/runtime/base/module.c"
said=$("$tmp/nowhere" 2>&1)
like "without the module it is told what is not installed" "$said" "gradients in CUDA memory are not served here: device/cuda.so"
GRADCOMP_PLUGIN_PATH=$build/lib/gradcomp
if [ "$(conf HAVE_NCCL)" = yes ]; then
	like "nccl is listed with its parameters, GPU or not" "$("$build/bin/gradcomp" list 2>&1)" nccl
	unlike "and NCCL is looked for when it is needed" "$(needs "$build/lib/gradcomp/collectives/nccl.so")" nccl
else
	skip "nccl is listed" "this build was configured without NCCL"
fi
done_testing
