#!/bin/bash
# Ranks that do not join, or refuse to: the others name them with their hosts, and hear why.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"

real_jobs
library_program job
# begin SHELL TIMEOUT: four ranks on four nodes that run SHELL first
begin () {
	rm -f run/pid.*
	# shellcheck disable=SC2016
	GRADCOMP_TRANSPORT_TIMEOUT=$2 timeout 120 "${bed[@]}" run -u alice srun --mpi=pmix -N4 -D "$tmp/run" --gradcomp=none \
		sh -c "$1"'; exec "$0" sums' "$tmp/job" > out 2>&1 &
	srun=$!
	began=$(date +%s%N)
}
# shellcheck disable=SC2329 # called by wait_for
said_by () { [ "$(grep -c "$2" out)" -ge "$1" ]; }
all_say () {
	wait_for "$1" said_by "$2" "$4"
	tap_result $? "$3: $((($(date +%s%N) - began) / 1000000)) ms" || note "$(cat out)"
}
# shellcheck disable=SC2016
stop='[ $SLURM_PROCID != 3 ] || { echo $$ > pid.3; kill -STOP $$; }'
go_on () {
	"${bed[@]}" node 4 kill -KILL "$(cat run/pid.3)"
	wait $srun
	check "$1: the job fails" test $? -gt 0
}

# As to a rank whose clock is set back by an hour while it waits.
cc -shared -fPIC -x c -o set-back.so - <<-END
	#include <sys/syscall.h>
	#include <time.h>
	#include <unistd.h>
	int clock_gettime(clockid_t id, struct timespec *t)
	{
		int failed = (int)syscall(SYS_clock_gettime, id, t);
		t->tv_sec += id == CLOCK_REALTIME ? 3600 : 0;
		return failed;
	}
END

timeout=$(scaled 4)
# shellcheck disable=SC2016
begin "$stop; "'[ $SLURM_PROCID != 1 ] || export LD_PRELOAD='"$tmp/set-back.so" "$timeout"
all_say $((timeout + 20)) 3 'a rank that is stopped before it joins is named with its host' \
	"^rank . join: pmix: rank 3 on n4 did not join within $timeout s"
go_on 'stopped'

# What is wrong with one rank's settings is heard long before the time-out.
# shellcheck disable=SC2016
begin '[ $SLURM_PROCID != 2 ] || export GRADCOMP_TRANSPORT_STREAMS=many' 100
wait $srun
check 'settings of one rank are wrong: the job fails' test $? -gt 0
check 'long before the time-out' test $((($(date +%s%N) - began) / 1000000000)) -lt 60
is 'the others hear why' "$(grep -c '^rank . join: rank 2 cannot join: environment GRADCOMP_TRANSPORT_STREAMS: ' out)" 3 || note "$(cat out)"
is 'and it says so itself' "$(grep -c '^rank . join: environment GRADCOMP_TRANSPORT_STREAMS: ' out)" 1

# shellcheck disable=SC2016
begin "$stop; "'[ $SLURM_PROCID != 1 ] || export GRADCOMP=nonsense' "$timeout"
all_say $((timeout + 20)) 2 'a rank that refuses counts more than one that is stopped' '^rank . join: rank 1 cannot join: .*nonsense'
go_on 'refuses beside one that is stopped'

all_idle 'every node is idle'
done_testing
