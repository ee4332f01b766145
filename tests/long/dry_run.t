#!/bin/bash
# time limit: 3600 s
# tests/gpu/bundle: one is interrupted and goes on. Another has the fake device in place of CUDA and NCCL, and its three calls run in a
# Debian that has nothing but what the bundle asks for, which is Python and the C++ library, and no network. What it says when
# something is wrong there.
: "${GRADCOMP_SRC:=$(cd "$(dirname "$0")/../.." && pwd)}" "${GRADCOMP_BUILD:?set it to the build directory}"
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
unset CC CFLAGS CPPFLAGS LDFLAGS LIBS AR NVCC CUDA_ARCHS PKG_CONFIG GRADCOMP_BUNDLE_WORK 2> /dev/null
bundle=$GRADCOMP_SRC/tests/gpu/bundle
export PYTHON=/usr/bin/python3

# shellcheck disable=SC2317,SC2329 # called by tap.sh
cleanup () { rm -rf --one-file-system "$dir/root/${tmp:?}"; }
# shellcheck source=/dev/null
dir=$GRADCOMP_BUILD/distro/$(. /etc/os-release && echo "${VERSION_CODENAME-none}")-gpu

# ---- interrupted

if [ -n "$(sed -n 's/^NVCC = *//p' "$GRADCOMP_BUILD/config.mk")" ]; then
	began=$SECONDS
	setsid "$bundle" --arch sm_90 "$tmp/real" > "$tmp/first" 2>&1 &
	first=$!
	compiled () { [ -n "$(find "$tmp/real.work/build/obj" -name '*.o' 2> /dev/null | head -n 1)" ] || ! kill -0 "$first" 2> /dev/null; }
	check 'a bundle begins to compile' wait_for 300 compiled
	kill -TERM -- "-$first"
	wait "$first"
	is 'it is interrupted, and makes nothing' "$(ls -A "$tmp/real" 2> /dev/null)" ''
	configured=$(stat -c %y "$tmp/real.work/build/config.log")
	check 'and goes on' "$bundle" --arch=sm_90 "$tmp/real"
	note "$said, $((SECONDS - began)) s"
	is '... without configuring again' "$(stat -c %y "$tmp/real.work/build/config.log")" "$configured"
	like 'with code for one GPU' "$(cat "$tmp/real/made")" 'code for sm_90, and PTX'
	rm -rf "$tmp/real" "$tmp/real.work"
else
	skip 'a bundle is interrupted, and goes on' 'this build was configured without CUDA'
fi
for wrong in '--arch 90' '--arch=sm_' '--arch' '--quick' "$tmp/a $tmp/b"; do
	# shellcheck disable=SC2086
	refuse "$wrong is refused" "$bundle" $wrong
done

# ---- in a root of its own

"$GRADCOMP_SRC/tests/distro/root" make "$dir" "$(. /etc/os-release && echo "$VERSION_CODENAME")" < /dev/null > "$tmp/said" 2>&1 || {
	skip 'the calls in an empty root' "$(tail -n 1 "$tmp/said")"
	done_testing
}
inside () { "$GRADCOMP_SRC/tests/distro/root" run "$dir" "$@" < /dev/null; }
check 'Python is installed there' inside env DEBIAN_FRONTEND=noninteractive \
	sh -c 'command -v python3 || { apt-get -q update && apt-get -qy --no-install-recommends install python3 && apt-get clean; }'
check "a bundle with the fake" "$bundle" --fake "$tmp/bundle"
mkdir -p "$dir/root/$tmp"
cp -a "$tmp/bundle" "$dir/root/$tmp/"
# call N [NAME=VALUE...]: DIR/call-N there, with a loopback and nothing else; its exit status, and the summary.
call () {
	n=$1
	shift
	# shellcheck disable=SC2016 # expanded there
	unshare --net -- sh -c 'ip link set lo up && exec "$@"' sh "$GRADCOMP_SRC/tests/distro/root" run "$dir" \
		env OUT="$tmp/out" TEST_BITS=16 WHOLE=no "$@" "$tmp/bundle/call-$n" < /dev/null > "$tmp/said" 2>&1
	status=$?
	summary=$(cat "$dir/root/$tmp/out/$n/summary" 2> /dev/null)
}
# verdict SECTION: what its line of the summary says
verdict () { sed -n "s/^$1  *[0-9 .]*  //p" <<< "$summary"; }
# are RIGHT... : these sections of the last call are right
are () {
	for section; do
		is "call $n: $section" "$(verdict "$section")" right || note "$(grep -a "^$section " "$dir/root/$tmp/out/$n/log" | tail -n 25)"
	done
}
call 1
is 'the first call ends well' $status 0
are facts rates
for section in rivals torch; do
	like "call 1: $section is left out, and says why" "$(verdict $section)" 'skipped: '
done
like 'with figures' "$(tail -n 1 "$dir/root/$tmp/out/1/figures.tsv")" 'rates	a step of 2^15 numbers, 4 ranks on one device'
call 2
is 'the second' $status 0
are facts reducer collective coder group
like 'call 2: fsdp is left out, and says why' "$(verdict fsdp)" 'skipped: '
call 3
is 'the third' $status 0
like 'call 3: the sanitizer is not there' "$(verdict sanitizer)" 'skipped: there is no compute-sanitizer'
call 1 FAKE_CUDA_DEVICES=0
is 'without a device it ends with 77' $status 77
rm "$dir/root/$tmp/bundle/python/gradcomp/lib/gradcomp/collectives/nccl.so"
call 2
is 'without NCCL the second call fails' $status 1
like '... names the section' "$(verdict collective)" 'wrong: '
for section in reducer coder group; do
	check "... and goes on with $section" test -n "$(verdict "$section")"
done
done_testing
