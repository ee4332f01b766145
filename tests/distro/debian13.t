#!/bin/bash
# time limit: 3600 s
# Debian 13: the tests of what is of another version there, Slurm, PMIx, Python and PyTorch, then the
# demo in the same tree, in a root made of Debian's archive. The root is kept below the build folder for the next time, with the
# packages in it; the sources are fresh, and lie where users can read them. A day a quarter of the tests; WHOLE=yes (check-long): all,
# and more of PyTorch.
# What packages.t builds there is optimised as usual; this build asks for less, which takes half the time.
: "${GRADCOMP_SRC:=$(cd "$(dirname "$0")/../.." && pwd)}" "${GRADCOMP_BUILD:?set it to the build directory}"
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"

suite=trixie
dir=$GRADCOMP_BUILD/distro/$suite
sources=$dir/root/usr/src/gradcomp
# shellcheck source=/dev/null
! (. /etc/os-release && [ "${VERSION_CODENAME-}" = $suite ]) || skip_all 'this is Debian 13'

# Killed, the first process of the root takes all others and their mounts with it.
child=
# shellcheck disable=SC2317,SC2329 # called by tap.sh
cleanup () { [ -z "$child" ] || { kill -KILL "$child"; wait "$child"; } 2> /dev/null; }
root () {
	"$GRADCOMP_SRC/tests/distro/root" "$@" < /dev/null > "$tmp/said" 2>&1 &
	child=$!
	wait $child
	status=$?
	child=
	return $status
}
# step NAME CMD...: CMD ends well in the root; its output is kept in $dir and in $tmp/said.
step () {
	local name=$1
	shift
	root run "$dir" "$@"
	tap_result $? "$name" || note "$(tail -n 200 "$tmp/said" | grep -vE '^  [A-Z]+ ')"
}

root make "$dir" $suite || {
	[ $? != 3 ] || skip_all "$(cat "$tmp/said")"
	note "$(cat "$tmp/said")"
	echo 'Bail out! no root could be made'
	exit 1
}

make -s -C "$GRADCOMP_BUILD" dist > "$tmp/dist.log" 2>&1 || { note "$(cat "$tmp/dist.log")"; echo 'Bail out! make dist'; exit 1; }
rm -rf --one-file-system "$sources"
mkdir -p "$sources"
tar -xf "$GRADCOMP_BUILD/gradcomp-$(cat "$GRADCOMP_SRC/VERSION").tar.gz" -C "$sources" --strip-components=1

tests='tests/cluster/job.t tests/python/launch.t' i=0
for name in cluster/{conf,coop,epilog,faults,joining,options,probe,prolog,rendezvous,staging,tasks,torchrun} \
	python/{attach,binding,caught,coder,delay,nocode,torchrun} ${WHOLE:+python/checkpoint python/local_sgd python/torch}; do
	! in_part $((i++)) 4 || tests="$tests tests/$name.t"
done
step 'the tests on a real Slurm' env CFLAGS=-O1 CHECK_TESTS="$tests" /usr/src/gradcomp/quickstart check cluster
note "$(grep -E '^ +skipped:|^slowest|passed, ' "$tmp/said")"
like 'none failed' "$(tail -n 1 "$tmp/said")" ', 0 failed,'
step 'the demo' env CFLAGS=-O1 /usr/src/gradcomp/quickstart demo --steps 40
is 'the demo: a row for every method' "$(grep -cE '^(none|cast|topk|powersgd|torch)[^ ]* +[0-9]' "$tmp/said")" 6
# Of a build without what is not everywhere: the wheel goes from one release to the other. wheel.t has made one, unless
# it has not run since what the wheel has in it was built.
wheel=$(find "$GRADCOMP_BUILD/tests/wheel" -name '*.whl' 2> /dev/null)
if [ -z "$wheel" ] || [ -n "$(find "$GRADCOMP_BUILD/lib" "$GRADCOMP_BUILD/bin" -type f -newer "$wheel")" ]; then
	check 'a wheel is made here' make -s -C "$GRADCOMP_BUILD" wheel WHEEL_ARGS='--without-cuda --without-verbs --without-nfs CFLAGS=-O0'
	mkdir -p "$GRADCOMP_BUILD/tests/wheel"
	mv "$GRADCOMP_BUILD"/gradcomp-*.whl "$GRADCOMP_BUILD/tests/wheel/"
fi
cp "$GRADCOMP_BUILD/tests/wheel/"*.whl "$sources/"
# shellcheck disable=SC2016 # expanded in the root
step 'it trains there on two ranks' bash -c '
	rm -rf /tmp/env && python3 -m venv --system-site-packages /tmp/env &&
	/tmp/env/bin/pip install --no-index --no-deps /usr/src/gradcomp/gradcomp-*.whl || exit
	export GRADCOMP=powersgd:rank=4 OMP_NUM_THREADS=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29517 WORLD_SIZE=2
	cd /tmp
	pids=
	for rank in 1 0; do RANK=$rank LOCAL_RANK=$rank timeout 120 /tmp/env/bin/python \
		/usr/src/gradcomp/examples/pytorch/digits.py --steps 10 --warm-up 2 & pids="$pids $!"; done
	for pid in $pids; do wait $pid || exit; done'
like '... with its own library' "$(cat "$tmp/said")" 'gradcomp: powersgd:rank=4 on 2 ranks of 1 node: 10 steps'
step 'downloaded packages are not kept' apt-get clean
done_testing
