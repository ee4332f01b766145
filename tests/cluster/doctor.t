#!/bin/bash
# gradcomp doctor: quiet where nodes are alike, and one node lies in each thing that it looks at.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
nodes=3
real_jobs
mkdir -m 755 etc
export GRADCOMP_CONF=$tmp/etc/gradcomp.conf
printf '[stage]\ncache_dir = /var/tmp/doctor\n' > etc/gradcomp.conf
for i in 1 2 3; do "${bed[@]}" node $i install -d -m 1777 /var/tmp/doctor; done
doctor () { on "$@" "$tmp/bin/gradcomp" doctor --records /var/tmp/gradcomp-records; }
# over NODE FILE: FILE is what stdin has, there
over () {
	cat > "$tmp/over$1.${2##*/}"
	chmod 755 "$tmp/over$1.${2##*/}"
	"${bed[@]}" node "$1" mount --bind "$tmp/over$1.${2##*/}" "$2"
}

check 'nodes that are alike' doctor salloc -Q -N3
like 'are said to be' "$said" '3 nodes are alike, and ranks on them form a job'
like 'and which network ranks use' "$said" 'ranks use the network 10.77.0.0/'
is 'and nothing else' "$(wc -l <<< "$said")" 2
check 'without an allocation' on "$tmp/bin/gradcomp" doctor --nodes 2 --records /var/tmp/gradcomp-records
like 'some nodes' "$said" '2 nodes are alike, and ranks on them form a job'
refuse 'without either' on "$tmp/bin/gradcomp" doctor
like 'says what it needs' "$said" 'doctor needs an allocation, as in salloc -N2 gradcomp doctor, or --nodes N'

cp bin/gradcomp bin/real
echo >> bin/real
over 2 "$tmp/bin/gradcomp" << END
#!/bin/sh
[ "\$2" = --facts ] || exec $tmp/bin/real "\$@"
$tmp/bin/real "\$@" | sed -e 's/\(	clock		\)[0-9]*/\199/' -e 's/\(	version		\)[^	]*/\10.0.9/'
END
printf '%s\n' '[stage]' 'cache_dir = /var/tmp/doctor' '[transport]' 'streams = 7' | over 2 "$GRADCOMP_CONF"
echo 'not this one' | over 3 "$tmp/lib/gradcomp/compressors/topk.so"
device=$("${bed[@]}" node 3 ip -o route get 10.77.0.1 | sed 's/.* dev \([^ ]*\).*/\1/')
"${bed[@]}" node 3 ip link set dev "$device" mtu 1300
"${bed[@]}" node 2 chmod 700 /var/tmp/doctor
"${bed[@]}" node 2 sh -c 'rm /var/tmp/gradcomp-records/prolog; : > /var/tmp/gradcomp-records/unseen'
refuse 'nodes that are not' doctor salloc -Q -N3
like 'clock' "$said" 'n2: the clock is '
like '... and what to do' "$said" ' s slow: set it, as with chronyc makestep'
like 'version' "$said" "n2: version is 0.0.9, on n1 it is $(cat "$GRADCOMP_SRC/VERSION"): install the same gradcomp on n2"
like 'setting' "$said" "n2: setting transport.streams is 7 ($GRADCOMP_CONF:4), on n1 it is 1: copy gradcomp.conf and conf.d of n1 to n2"
like 'plugin' "$said" "n3: compressor topk is $(sha256sum over3.topk.so | cut -c1-12) ($tmp/lib/gradcomp/compressors/topk.so), on n1 it is "
like '... and what to do' "$said" ": install on n3 what n1 has as $tmp/lib/gradcomp/compressors/topk.so"
like 'command' "$said" "n2: file gradcomp is $(sha256sum bin/real | cut -c1-12) ($tmp/bin/real), on n1 it is $(sha256sum bin/gradcomp | cut -c1-12): install"
like 'MTU' "$said" "n3: mtu is 1300 ($device), on n1 it is 1500: on n3: ip link set dev $device mtu 1500"
like 'cache' "$said" 'n2: cache is of uid 0 with mode 0700 (/var/tmp/doctor), on n1 it is of uid 0 with mode 1777: on n2: install -d -m 1777 -o root /var/tmp/doctor'
like 'epilogs' "$said" 'n2: slurmd runs no epilogs of gradcomp, it was started before plugstack.conf named the plugin: restart slurmd'
unlike 'what is alike is not told' "$said" 'on n2 it is'

"${bed[@]}" node 2 umount "$GRADCOMP_CONF"
printf '%s\n' '[transport]' 'interface = 10.99.0.0/16' | over 2 "$GRADCOMP_CONF"
refuse 'a node without the network' doctor salloc -Q -N3
like 'is named' "$said" 'n2: transport.interface=10.99.0.0/16 matches no address of this machine; it has '
like 'ranks do not join there' "$said" 'over all nodes: ranks cannot form a job: gradcomp: '
like '... nor in a part of the nodes' "$said" 'over all nodes but the first: ranks cannot form a job: gradcomp: '
"${bed[@]}" node 2 umount "$GRADCOMP_CONF"
printf '%s\n' '[transport]' 'interfaces = x' | over 2 "$GRADCOMP_CONF"
like 'a file that cannot be read' "$(doctor salloc -Q -N3)" "n2: $GRADCOMP_CONF:2: unknown key 'interfaces'"
"${bed[@]}" node 2 umount "$GRADCOMP_CONF"

# Packets of full size between n2 and n3 are lost in the switch, whose ports have an MTU of 1500.
for i in 2 3; do "${bed[@]}" node $i ip link set dev "$device" mtu 9000 gso_max_segs 1; done
refuse 'a path that loses packets of full size' doctor salloc -Q -N3
like 'is named' "$said" 'n2: packets of full size do not reach n3: an MTU on the way is smaller than that of the nodes; ping -M do -s SIZE n3 finds'
like 'in both directions' "$said" 'n3: packets of full size do not reach n2: '
unlike 'and no other' "$said" 'do not reach n1'
done_testing
