#!/bin/bash
# Links over verbs on a real kernel's RDMA device, in software (rdma_rxe), in a virtual
# machine: messages of all sizes between two, four and five ranks, every installed
# collective, killed peers, wrong keys, and every way back to tcp with its line.
# shellcheck disable=SC2154 # tmp: of tap.sh
: "${GRADCOMP_SRC:=$(cd "$(dirname "$0")/../.." && pwd)}" "${GRADCOMP_BUILD:?set it to the build directory}"
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
here=$GRADCOMP_SRC/tests/vm
unit=$GRADCOMP_BUILD/tests/unit

[ -e "$GRADCOMP_BUILD/lib/gradcomp/transport/verbs.so" ] || skip_all 'built without libibverbs'
command -v rdma > /dev/null || skip_all 'rdma (iproute2) is not installed'
ls /usr/lib/*/libibverbs/librxe-* > /dev/null 2>&1 || skip_all 'no driver for rdma_rxe (ibverbs-providers)'
lacking=$("$here/vm" make "$GRADCOMP_BUILD/vm" 2> "$tmp/make.log") || {
	[ $? = 3 ] && skip_all "$lacking"
	note "$(cat "$tmp/make.log")"
	echo 'Bail out! the virtual machine cannot be made'
	exit 1
}

# All collectives among two ranks and among four by turns.
sizes=
! in_part 0 2 || sizes=2
! in_part 1 2 || sizes="$sizes 4"
mkdir "$tmp/job"
cat > "$tmp/job/all" <<END
export GRADCOMP_TRANSPORT_ALLOW=tcp,verbs GRADCOMP_LOG=info
cd "$unit"
run () {
	local name=\$1
	shift
	timeout 300 "\$@" > /mnt/job/\$name 2>&1
	echo "exit status \$?" >> /mnt/job/\$name
}
limited () {
	(ulimit -l \$1 && shift && exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock "\$@")
}
export -f limited
run missing ./many_ranks 2 0 ring
modprobe -a ib_uverbs rdma_rxe
rdma link add rxe0 type rxe netdev lo
run links ./transport_links 'verbs, a device'
run verbs ./transport_verbs device
export GRADCOMP_TRANSPORT_ALLOW=verbs
for ranks in $sizes; do
	run short\$ranks ./many_ranks \$ranks
	run long\$ranks ./many_ranks \$ranks 300000
done
GRADCOMP_FUZZ_ROUNDS=24 run lies ../fuzz/collectives verbs
export GRADCOMP_TRANSPORT_ALLOW=tcp,verbs
GRADCOMP_TRANSPORT_ALLOW=verbs GRADCOMP_TRANSPORT_VERBS_DEVICE=rxe0:1:1 run given ./many_ranks 2 0 ring
GRADCOMP_TRANSPORT_ALLOW=verbs GRADCOMP_TRANSPORT_INTERFACE=lo run interface ./many_ranks 2 0 ring
run none bash -c 'limited 64 ./many_ranks 2 0 ring'
run some bash -c 'limited 1024 ./many_ranks 2 300000 ring'
GRADCOMP_TRANSPORT_VERBS_DEVICE=mlx5_0 run device ./many_ranks 2 0 ring
GRADCOMP_TRANSPORT_VERBS_DEVICE=rxe0:1:9 run gid ./many_ranks 2 0 ring
GRADCOMP_TRANSPORT_VERBS_DEVICE=rxe0:1:0 run path ./many_ranks 2 0 ring
for library in /usr/lib/*/libibverbs.so.1; do mount --bind /dev/null \$library; done
run library ./many_ranks 2 0 ring
rdma link delete rxe0
run gone ./many_ranks 2 0 ring
END

"$here/vm" run "$GRADCOMP_BUILD/vm" "$tmp/job" "$(scaled 240)" bash /mnt/job/all > "$tmp/out" 2>&1
is 'the machine runs to its end' $? 0 || note "$(tail -n 20 "$tmp/out")"

# What NAME says in the end, and that no line of it is a failure.
good () {
	local what
	what=$(cat "$tmp/job/$1" 2>&1)
	case $what in *"
not ok "*) what="failed: $what" ;; esac
	tap_name=$2
	[ "${what##*
}" = 'exit status 0' ] && [ "${what#failed}" = "$what" ]
	tap_result $? "$tap_name" || note "$(printf '%s\n' "$what" | grep -v '^ok ' | tail -n 25)"
}
# And a line in its log.
falls_back () {
	good "$1" "$2: collectives go on"
	like "$2: the line that says why" "$(cat "$tmp/job/$1" 2>&1)" "$3"
}

good links 'messages of all sizes, 2 and 5 ranks, threads and processes'
good verbs 'mismatches, wrong keys, killed peers, ways back to tcp'
for ranks in $sizes; do
	good "short$ranks" "every installed collective, $ranks ranks, verbs alone, short messages"
	good "long$ranks" "every installed collective, $ranks ranks, verbs alone, long messages"
done
good lies 'a rank that lies: the others end with a result or an error, in time'
sed -n 's/^# tried: .*/&, over verbs/p' "$tmp/job/lies"
good given 'a device, port and GID that are given'
good interface 'the GID of an interface that is given'
falls_back missing 'no device' 'verbs is not used: this machine has no RDMA device'
falls_back none 'a low limit of locked memory' 'KiB; raise it, best to unlimited'
falls_back some 'a limit that allows the pool alone' "long messages are copied through gradcomp's own memory"
falls_back device 'another device' 'verbs is not used: transport.verbs_device=mlx5_0: there is no such RDMA device'
falls_back gid 'a GID that is not there' 'the GID of transport.verbs_device does not exist'
falls_back path 'a GID that does not lead there' 'not verbs: '
falls_back library 'a libibverbs that cannot be loaded' 'transport/verbs.so cannot be loaded: '
falls_back gone 'the device was removed' 'verbs is not used: this machine has no RDMA device'
done_testing
