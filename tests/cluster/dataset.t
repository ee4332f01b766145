#!/bin/bash
# --gradcomp-stage with the real command: what tasks find on each node, what the
# next job finds, and what users are told.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
start_cluster --nodes "$nodes"
real required

cp -r "$GRADCOMP_SRC/include" "$GRADCOMP_SRC/runtime" .
mkdir data
mv include runtime data
mkdir data/empty
ln -s include/gradcomp data/short
ln data/include/gradcomp/abi.h data/same.h
# shellcheck disable=SC2094 # find leaves it out
(cd data && find . -type f ! -name SUMS -exec sha256sum {} + > SUMS)
chmod -R a+rX data
files=$(find data -type f | wc -l)
# What each task does: checks every file, says where it is and which copy it has.
# shellcheck disable=SC2016 # expanded by the task
look='cd "$GRADCOMP_DATA" && sha256sum --quiet -c SUMS && [ -d empty ] && [ -L short ] && [ same.h -ef include/gradcomp/abi.h ] &&
	echo "$(hostname) $(id -un) $(stat -c "%d %i" .) $GRADCOMP_DATA"'

began=$(date +%s%N)
check 'a job on 4 nodes' on srun -N4 -n8 --ntasks-per-node=2 --gradcomp-stage="$tmp/data" sh -c "$look"
cold=$((($(date +%s%N) - began) / 1000000))
first=$(grep '^n[1-4] alice ' <<< "$said" | sort)
is 'every task of every node has all of it' "$(wc -l <<< "$first")" 8
is 'the tasks of a node share a copy' "$(sort -u <<< "$first" | wc -l)" 4
like 'one line says what was done' "$said" "staged $files files"
is 'and no more' "$(grep -c '^gradcomp: ' <<< "$said")" 1
like 'in the cache of the user' "$first" "/var/tmp/gradcomp-$(as alice id -u)/"

began=$(date +%s%N)
check 'the next job' on srun -N4 -n8 --ntasks-per-node=2 --gradcomp-stage="$tmp/data" sh -c "$look"
note "first job $cold ms, second $((($(date +%s%N) - began) / 1000000)) ms"
is 'has the same copies' "$(grep '^n[1-4] alice ' <<< "$said" | sort)" "$first"
like 'and says so' "$said" "using cached copy of $tmp/data ($files files"

check 'another user' as bob srun -N4 -n4 --gradcomp-stage="$tmp/data" sh -c "$look"
is 'has copies of his own' "$(grep -c "^n[1-4] bob .*/gradcomp-$(as bob id -u)/" <<< "$said")" 4
path=$(head -n 1 <<< "$first" | sed 's/.* //')
refuse 'and cannot read the others' as bob srun -wn1 ls "$path"

touch data/same.h
check 'a changed source' on srun -wn1 --gradcomp-stage="$tmp/data" sh -c "$look"
is 'is staged again' "$(grep -c '^n1 alice ' <<< "$said"):$(grep -cF "$path" <<< "$said")" 1:0

touch data/same.h
for i in 1 2 3; do
	on srun -wn2 -n1 --gradcomp-stage="$tmp/data" sh -c "$look" > "together.$i" 2>&1 &
done
wait
is 'three jobs at once on a node' "$(cat together.? | grep -c '^n2 alice ')" 3
is 'have one copy' "$(cat together.? | grep '^n2 alice ' | sort -u | wc -l)" 1

# Cancelled while it copies: the next job makes it whole.
mkdir large
for ((i = 1; i <= 12; i++)); do head -c 100M /dev/zero > "large/$i"; done # more than is copied between two signals of a busy slurmd
on srun -wn3 -n1 --gradcomp-stage="$tmp/large" echo it ran > cancelled 2>&1 &
# Stopped meanwhile, or it might end before scancel is heard. That lets it go on, as it does whatever it ends.
copies () { "${bed[@]}" node 3 sh -c 'test -s /var/tmp/gradcomp-*/*.tmp/journal && pkill -STOP -x gradcomp' 2> /dev/null; }
check 'it copies' wait_for 10 copies
cancel_jobs
wait
unlike 'cancelled while it copies: no task ran' "$(cat cancelled)" 'it ran'
# shellcheck disable=SC2016 # expanded by the task
check 'the next job' on srun -wn3 -n1 --gradcomp-stage="$tmp/large" sh -c 'cmp "$GRADCOMP_DATA/4" '"$tmp/large/4"
is 'and leaves no working files' "$("${bed[@]}" node 3 sh -c 'ls -d /var/tmp/gradcomp-*/*.tmp /var/tmp/gradcomp-*/*.lock' 2>/dev/null)" ""
note "$(grep '^gradcomp: ' <<< "$said")"

# failed NAME WORDS DIRECTORY: the step ends with 1, no task ran, the reason is shown
failed () {
	shown=$(on srun -N4 -n4 --gradcomp-stage="$3" echo it ran 2>&1)
	is "$1: exit status" $? 1
	like "$1: the reason" "$shown" "$2"
	unlike "$1: no task ran" "$shown" 'it ran'
}
failed 'no such directory' "there is no directory or file $tmp/missing to stage" "$tmp/missing"
chmod 600 data/SUMS
failed 'an unreadable file' 'cannot read SUMS: Permission denied' "$tmp/data"
chmod 644 data/SUMS
mkfifo data/runtime/pipe
failed 'a FIFO' 'runtime/pipe is a FIFO' "$tmp/data"
rm data/runtime/pipe
# For a user who has no area of his own beside it.
for k in 1 2 3 4; do
	"${bed[@]}" node $k sh -c 'rm -rf /var/tmp/gradcomp-[0-9]* && mkdir -p /var/tmp/gradcomp && chmod 777 /var/tmp/gradcomp'
done
failed 'a cache that others can write' '/var/tmp/gradcomp can be written by others' "$tmp/data"
all_idle 'every node is idle after all that'
done_testing
