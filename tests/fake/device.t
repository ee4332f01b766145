#!/bin/sh
# Everything that works with a GPU, without one: the reducer's device path, the module
# of memory and streams and the collective nccl are compiled against a fake CUDA and a
# fake NCCL, under the sanitisers, and run with ranks as processes.
# shellcheck source=tests/support/tap.sh disable=SC2154
. "$GRADCOMP_SRC/tests/support/tap.sh"

src=$GRADCOMP_SRC fake=$GRADCOMP_SRC/tests/fake cxx=
for name in ${CXX:-} c++ g++ clang++; do
	command -v "$name" >/dev/null && cxx=$name && break
done
[ -n "$cxx" ] || skip_all "there is no C++ compiler"
command -v "${CC:=cc}" >/dev/null || skip_all "there is no C compiler '$CC'"

sane="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
echo 'int main() { return 0; }' >"$tmp/t.cpp"
# shellcheck disable=SC2086
"$cxx" $sane -o "$tmp/t" "$tmp/t.cpp" 2>/dev/null && "$tmp/t" || sane=

lib=$tmp/lib
mkdir -p "$lib/gradcomp/device" "$lib/gradcomp/operators" "$lib/gradcomp/collectives"
flags="-O1 -g -Wall -Wextra -Werror -fPIC $sane -I$fake/include -I$src/include -I$src/runtime -I$src"
libs=$(sed -n 's/^LIB_LIBS = //p' "$GRADCOMP_BUILD/config.mk")
archive=$GRADCOMP_BUILD/lib/libgradcomp.a
cuda="-L$lib -lfakecuda -Wl,-rpath,$lib"
c="$CC -std=gnu11 -D_GNU_SOURCE -fvisibility=hidden"

build () {
	# shellcheck disable=SC2086
	"$cxx" -std=c++17 $flags -shared -o "$lib/libfakecuda.so" "$fake/cuda.cpp" -lpthread || return
	{
		echo "$cxx -std=c++17 $flags -shared -o $lib/gradcomp/operators/cuda.so $fake/operators.cpp $archive" \
			"-Wl,--exclude-libs,ALL $cuda $libs -lm -ldl -lpthread"
		echo "$cxx -std=c++17 $flags -shared -Wl,-soname,libnccl.so.2 -o $lib/libnccl.so.2 $fake/nccl.cpp $archive" \
			"-Wl,--exclude-libs,ALL $cuda $libs -lm -ldl -lpthread"
		echo "$c $flags -shared -o $lib/gradcomp/device/cuda.so $src/runtime/device/cuda/cuda.c $cuda"
		echo "$c $flags -shared -o $lib/gradcomp/collectives/nccl.so $src/plugins/collectives/nccl.c" \
			"$src/plugins/collectives/nccl/*.c $GRADCOMP_BUILD/lib/plugins.a $cuda -lm -ldl"
		for program in reducer collective faults; do
			echo "$c $flags -o $tmp/$program $fake/$program.c $src/tests/support/tap.c $archive $cuda $libs -lm -ldl -lrt -lpthread"
		done
	} >"$tmp/commands"
	xargs -P 2 -I '{}' sh -c '{}' <"$tmp/commands"
}
if ! said=$(build 2>&1); then
	echo "not ok 1 - the device's code compiles against the fake"
	note "$(printf '%s\n' "$said" | tail -n 25)"
	echo "1..1"
	exit 1
fi

LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
GRADCOMP_PLUGIN_PATH=$lib/gradcomp:$GRADCOMP_BUILD/lib/gradcomp
UBSAN_OPTIONS=print_stacktrace=1
export LD_LIBRARY_PATH GRADCOMP_PLUGIN_PATH UBSAN_OPTIONS
# Each program numbers its own results; here they are one list.
for program in reducer collective faults; do
	"$tmp/$program" >"$tmp/out" 2>&1
	status=$?
	while IFS= read -r line; do
		case $line in
		"ok "*) tap_result 0 "$program: ${line#ok * - }" ;;
		"not ok "*) tap_result 1 "$program: ${line#not ok * - }" ;;
		"1.."*) ended=$program ;;
		*) note "${line#\# }" ;;
		esac
	done <"$tmp/out"
	[ "${ended-}" = "$program" ]
	tap_result $? "$program reaches its end (status $status)"
done
done_testing
