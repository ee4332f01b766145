#!/bin/bash
# conf=FILE in plugstack.conf: the settings srun checks with, those of the tasks and
# those of staging; and what a small or busy cache does to a job.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
start_cluster --nodes "$nodes"
mkdir -m 755 etc data
mkdir -m 777 out
conf=$tmp/etc/gradcomp.conf
real optional "conf=$conf"
settings () { printf '%s\n' "$@" > "$conf"; }

settings '[gradcomp]' 'collective = ring' '[stage]' 'cache_dir = /tmp/cache'
is 'the tasks are told' "$(on srun -wn1 --gradcomp=none printenv GRADCOMP_CONF)" "$conf"
is 'not without an option' "$(on srun -wn1 printenv GRADCOMP_CONF 2> /dev/null)" ""
cp "$conf" mine.conf
is 'a file of the user wins' "$(GRADCOMP_CONF=$tmp/mine.conf on srun -wn1 --gradcomp=none printenv GRADCOMP_CONF)" "$tmp/mine.conf"
like 'help shows them' "$(on srun --gradcomp=help)" "($conf:4)"
before=$(submitted)
settings '[gradcomp]' 'collective = rnig'
refuse 'a collective that is none, in the file' on srun -wn1 --gradcomp=none true
like 'a collective that is none: named' "$said" rnig
settings '[gradcomp]' 'colour = blue'
refuse 'an unknown key' on srun -wn1 --gradcomp=none true
like 'an unknown key: file and line' "$said" "gradcomp: $conf:2: "
settings '[gradcomp]'
chmod 666 "$conf"
refuse 'a file that others can write' on srun -wn1 --gradcomp=none true
like 'a file that others can write: named' "$said" "$conf"
chmod 644 "$conf"
is 'nothing was submitted' "$(submitted)" "$before"
check 'a job without gradcomp runs all the same' on srun -wn1 true

head -c 300000 /dev/urandom > data/random
settings '[stage]' 'cache_dir = /tmp/cache'
like 'staging goes where it says' "$(on srun -wn1 --gradcomp-stage="$tmp/data" printenv GRADCOMP_DATA 2> /dev/null)" /tmp/cache

# failed NAME WORDS: the step ends with 1, no task ran, the reason is shown
failed () {
	shown=$(on srun -wn1 --gradcomp-stage="$tmp/data" touch "$tmp/out/ran" 2>&1)
	is "$1: exit status" $? 1
	like "$1: the reason" "$shown" "$2"
	check "$1: no task ran" test ! -e out/ran
}
settings '[stage]' 'cache_dir = /tmp/other' 'max_bytes = 200000'
failed 'larger than the limit' 'stage.max_bytes allows 200.0 kB'
settings '[stage]' 'cache_dir = /tmp/small/cache'
"${bed[@]}" node 1 mkdir -m 1777 /tmp/small
"${bed[@]}" node 1 mount -t tmpfs -o size=200k,mode=1777 tmpfs /tmp/small
failed 'no space' space
is 'no space: nothing large is left' "$("${bed[@]}" node 1 find /tmp/small -type f -size +50k)" ""

# Cancelled in the middle (it is stopped there, so as not to be done first), then asked again.
settings '[stage]' 'cache_dir = /tmp/cache'
for i in 1 2 3 4 5 6; do head -c 50000000 /dev/zero | tr '\0' "$i" > data/$i; done
"${bed[@]}" run -u alice srun -wn1 --gradcomp-stage="$tmp/data" touch "$tmp/out/ran" > out/srun 2>&1 &
for _ in {1..100}; do
	"${bed[@]}" node 1 pkill -STOP -x gradcomp && break
done
as root scancel -u alice
wait $!
check 'cancelled while it copies: no task ran' test ! -e out/ran
all_idle 'cancelled while it copies: every node is idle'
# shellcheck disable=SC2016 # expanded by the task
check 'asked again: a whole copy' on srun -wn1 --gradcomp-stage="$tmp/data" sh -c "diff -r $tmp/data \"\$GRADCOMP_DATA\""
all_idle 'every node is idle'
done_testing
