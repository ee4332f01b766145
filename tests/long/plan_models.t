#!/bin/sh
# time limit: 1800 s
# Every configuration of tests/golden/configs is planned for 16 nodes of 8 ranks, with all compressors of the machine
# file, all collectives and all schedules, in 10 s of two idle cores (20 s of processor time) and 200 MB.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
export GRADCOMP_PLUGIN_PATH="$GRADCOMP_BUILD/lib/gradcomp" GRADCOMP_MODELS="$GRADCOMP_SRC/etc/models"
unset GRADCOMP GRADCOMP_CONF
grep -q HAVE_JANSSON "$GRADCOMP_BUILD/gradcomp_config.h" || skip_all 'built without jansson'

# The exit status, seconds of processor time and MB of the largest process of a command whose output is in $tmp/out.
costs () {
	perl -e 'open my $said, ">&", \*STDOUT; open STDOUT, ">", shift; open STDERR, ">&", \*STDOUT; my $st = system @ARGV;
		my $r = "\0" x 144; syscall 98, -1, $r; my @u = unpack "q5", $r;
		printf $said "%d %.2f %.0f\n", $st >> 8, $u[0] + $u[2] + ($u[1] + $u[3]) / 1e6, $u[4] / 1e3' "$tmp/out" "$@"
}
for file in "$GRADCOMP_SRC"/tests/golden/configs/*.json; do
	name=${file##*/} name=${name%.json}
	# shellcheck disable=SC2046
	set -- $(costs "$gradcomp" plan --model "$file" --machine "$GRADCOMP_SRC/examples/gigabit.machine" --nodes 16 --ranks-per-node 8)
	is "$name: exit status" "${1:-}" 0
	awk -v s="${2:-99}" -v mb="${3:-999}" 'BEGIN { exit !(s <= 20 && mb <= 200) }'
	tap_result $? "$name: 20 s of processor time and 200 MB at most"
	echo "# $name: $2 s of processor time, $3 MB"
done
done_testing
