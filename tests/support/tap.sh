# shellcheck shell=sh
# TAP for shell tests, to be sourced. $tmp is a folder of the test's own, removed
# when it ends; a test with more to clean up defines cleanup().
#
#   check NAME CMD...      CMD succeeds; what it printed is shown when it does not
#   refuse NAME CMD...     CMD fails, but is not killed by a signal; leaves what it printed in $said
#   is NAME GOT WANT       texts are equal
#   like NAME TEXT PART    PART occurs in TEXT
#   unlike NAME TEXT PART  PART does not
#   skip NAME WHY          this one was not tried
#   skip_all WHY           none was; ends the test
#   tried N WHAT           N more of WHAT, for the sums that tests/run prints
#   part                   for a test with more cases than CI has time for: which part of them it does, a number that
#                          grows by one every day; PART=N repeats it
#   in_part I N            case I is in the part, which is one of N; with WHOLE=yes (make check-long) all are
#   done_testing           last line of the test
#   pace                   how slow the machine is there and then, in percent: pace.h
#   scaled N               N, but more of it on a machine that is busy
#   wait_for SECONDS CMD...  until CMD succeeds, at most SECONDS of an idle machine
tap_n=0 tap_bad=0 said=
tmp=$(mktemp -d /var/tmp/gradcomp-test.XXXXXX) || exit 1
cleanup () { :; }
trap 'cleanup; chmod -R u+w "$tmp" 2>/dev/null; rm -rf "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

note () { printf '%s\n' "$1" | sed 's/^/# /'; }
tap_result () {
	tap_n=$((tap_n + 1))
	if [ "$1" = 0 ]; then
		echo "ok $tap_n - $2"
	else
		echo "not ok $tap_n - $2"
		tap_bad=$((tap_bad + 1))
		return 1
	fi
}
check () {
	tap_name=$1
	shift
	said=$("$@" 2>&1)
	tap_result $? "$tap_name" || note "$(printf '%s\n' "\$ $*" "$said" | tail -n 25)"
}
refuse () {
	tap_name=$1
	shift
	said=$("$@" 2>&1)
	tap_status=$?
	if [ $tap_status -gt 0 ] && [ $tap_status -lt 126 ]; then
		tap_result 0 "$tap_name"
	else
		tap_result 1 "$tap_name" || note "\$ $*
exit status $tap_status
$said"
	fi
}
is () {
	[ "$2" = "$3" ]
	tap_result $? "$1" || note " got: $2
want: $3"
}
like () {
	case $2 in *"$3"*) tap_result 0 "$1" ;; *) tap_result 1 "$1" || note " text: $2
lacks: $3" ;; esac
}
unlike () {
	case $2 in *"$3"*) tap_result 1 "$1" || note "text: $2
 has: $3" ;; *) tap_result 0 "$1" ;; esac
}
part () { echo "${PART:-$(($(date +%s) / 86400))}"; }
in_part () { [ "${WHOLE-}" = yes ] || [ $(($1 % $2)) = $(($(part) % $2)) ]; }
tried () { echo "# tried: $1 $2"; }
skip () {
	tap_n=$((tap_n + 1))
	echo "ok $tap_n - $1 # SKIP $2"
}

# A shell's loop on every processor, against what it takes on an idle machine: 40 ms.
pace () (
	began=$(date +%s%N)
	for _ in $(seq "$(getconf _NPROCESSORS_ONLN)"); do
		sh -c 'i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done' &
	done
	wait
	percent=$((($(date +%s%N) - began) / 400000))
	echo $((percent > 100 ? percent : 100))
)
scaled () { echo $(($1 * $(pace) / 100)); }
# In its parameters, since what it waits for may wait, too.
wait_for () {
	set -- "$(date +%s)" "$@"
	until tap_command "$@"; do
		[ $(($(date +%s) - $1)) -le "$2" ] || tap_patient "$1" "$2" || return 1
		sleep 0.05
	done
}
tap_command () {
	shift 2
	"$@"
}
# What has taken longer than on an idle machine may on this one.
tap_patient () {
	sleep 0.5
	[ $(($(date +%s) - $1)) -le "$(scaled "$2")" ]
}

skip_all () {
	echo "1..0 # SKIP $1"
	exit 0
}
done_testing () {
	echo "1..$tap_n"
	[ $tap_bad = 0 ]
	exit
}
