#!/bin/bash
# [stage] prolog=yes: what the site declares shared is staged before jobs start, never as
# root, and never in the way of a job. Epilogs clean up.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
nodes=2
# slurmd looks for prologs of plugins when it starts.
[ -e "$so" ] || skip_all "no SPANK plugin was built"
[ -e "$GRADCOMP_BUILD/bin/gradcomp" ] || skip_all 'no gradcomp command was built'
cp -r "$GRADCOMP_BUILD/bin" "$GRADCOMP_BUILD/lib" "$tmp"
chmod -R go=rX "$tmp/bin" "$tmp/lib"
# The environment of a prolog is empty, so the command's library is found by a script.
cat > helper <<-END
	#!/bin/bash
	export LD_LIBRARY_PATH=$tmp/lib GRADCOMP_PLUGIN_PATH=$tmp/lib/gradcomp
	(umask 0; echo "\$(hostname) \$(id -u) \$*" >> $tmp/log/calls)
	[ ! -e $tmp/hold ] || [ "\$2" != --job ] || sleep 600
	exec $tmp/bin/gradcomp "\$@"
END
chmod 755 helper
mkdir -m 777 log
install -m 755 "$so" .
records=/var/tmp/gradcomp-records
echo "optional $tmp/spank_gradcomp.so helper=$tmp/helper conf=$tmp/conf records=$records" > plugstack
mkdir data other
head -c 3000000 /dev/urandom > data/one
echo two > data/two
echo mine > other/file
chmod -R a+rX data other
account=$(id -un 65534 2>/dev/null || echo nobody)
conf () { printf '[stage]\nshared = %s\nshared_user = %s\n' "$tmp/data" "$account" > conf; printf '%s\n' "$@" >> conf; }
conf 'cache_dir = /var/tmp/cache'
start_cluster --nodes $nodes --plugstack "$tmp/plugstack"
for k in 1 2; do "${bed[@]}" node $k mkdir -m 1777 /var/tmp/cache; done
calls () { sort log/calls 2>/dev/null; rm -f log/calls; }
# The epilog runs after srun has ended.
settled () { all_idle "$1: every node is idle"; sleep 0.5; }

check 'a job without prolog=yes' on srun -N2 true
settled 'no prolog'
is 'starts nothing' "$(calls)" ''

conf 'cache_dir = /var/tmp/cache' 'prolog = yes'
# shellcheck disable=SC2016 # expanded by the job
check 'a job with it' on srun -N2 sh -c 'find /var/tmp/cache/shared -name two | xargs cat'
is 'finds the copy there on every node' "$(grep -c '^two$' <<< "$said")" 2
settled 'prolog'
called=$(calls)
is 'asked as nobody, staged as the account, cleaned up as it' "$(grep -c '^n1 65534 ' <<< "$called"):$(grep -v -c ' 65534 ' <<< "$called")" 4:0
like 'the plan' "$called" 'n1 65534 prolog --plan'
like 'the staging' "$called" 'n1 65534 prolog --job'
like 'the end' "$called" 'n1 65534 cache gc --shared --job'
is 'no lease is left' "$("${bed[@]}" node 1 sh -c 'ls -d /var/tmp/cache/shared/*.lease/* 2>/dev/null')" ''
is 'and no record, but that there are prologs' "$("${bed[@]}" node 1 ls -A $records)" prolog

export LD_LIBRARY_PATH=$tmp/lib GRADCOMP_PLUGIN_PATH=$tmp/lib/gradcomp
check 'a step that asks for it' on srun -N2 -n2 --gradcomp-stage="$tmp/data" printenv GRADCOMP_DATA
is 'uses the copy of all' "$(grep -c '^/var/tmp/cache/shared/' <<< "$said")" 2
check 'and one that asks for something else' on srun -N2 -n2 --gradcomp-stage="$tmp/other" printenv GRADCOMP_DATA
is 'has its own' "$(grep -c "^/var/tmp/cache/$(as alice id -u)/" <<< "$said")" 2
settled 'steps'
called=$(calls)
is 'its epilog cleans up as the user' "$(grep -c "$(as alice id -u) cache gc$" <<< "$called")" 4
is 'nothing ran as root' "$(grep -c ' 0 ' <<< "$called")" 0
is 'no lease of a step is left' "$("${bed[@]}" node 1 sh -c 'find /var/tmp/cache -path "*.lease/*"')" ''

# A job holds what the prolog staged as long as it runs.
"${bed[@]}" run -u alice srun -N1 -wn1 sleep 30 > srun.out 2>&1 &
srun=$!
for _ in {1..100}; do
	held=$("${bed[@]}" node 1 sh -c 'ls -d /var/tmp/cache/shared/*.lease/* 2>/dev/null')
	[ -n "$held" ] && break
	sleep 0.1
done
check 'a running job has a lease' test -n "$held"
cancel_jobs
wait $srun
settled 'scancel'
is 'a cancelled one has none' "$("${bed[@]}" node 1 sh -c 'ls -d /var/tmp/cache/shared/*.lease/* 2>/dev/null')" ''

calls > calls.old
sed -i 's/$/ plan_user=bob/' plugstack
check 'a job when another account reads the settings' on srun -wn1 true
settled 'plan_user'
called=$(calls)
like 'it does' "$called" "n1 $(as bob id -u) prolog --plan"
like 'and the staging is as before' "$called" 'n1 65534 prolog --job'
sed -i 's/plan_user=bob/plan_user=nosuchuser/' plugstack
check 'a job when there is no such account' on srun -wn1 true
settled 'no plan_user'
is 'no prolog runs' "$(calls)" ''
sed -i 's/ plan_user=nosuchuser//' plugstack

# What goes wrong is logged, and the job starts.
for wrong in "shared = $tmp/missing" 'shared_user = nosuchuser' 'prolog_timeout = 0' 'prolog = perhaps' 'rubbish'; do
	printf '[stage]\n%s\n' "$wrong" 'cache_dir = /var/tmp/cache' > conf
	for line in "shared = $tmp/data" "shared_user = $account" 'prolog = yes'; do
		[ "${line%% =*}" = "${wrong%% =*}" ] || echo "$line" >> conf
	done
	check "$wrong: the job runs" on srun -wn1 echo ran
	like "$wrong: and nothing stands in its way" "$said" ran
done
chmod 700 data
conf 'cache_dir = /var/tmp/cache' 'prolog = yes'
touch data/two
check 'a source that the account cannot read: the job runs' on srun -wn1 true
like 'and the log says why' "$(cat "$state/log/slurmd-n1.log" "$state"/n1/*.log 2>/dev/null)" 'Permission denied'
chmod 755 data
touch hold
conf 'cache_dir = /var/tmp/cache' 'prolog = yes' 'prolog_timeout = 1'
check 'a staging without an end: the job runs' on srun -wn1 true
for _ in {1..50}; do
	left=$("${bed[@]}" node 1 ps -e -o args= | grep -c '[s]leep 600')
	[ "$left" = 0 ] && break
	sleep 0.1
done
is 'and it has been ended' "$left" 0
rm hold
mkdir -m 777 "$state/n1/var/tmp/open" && "${bed[@]}" node 1 sh -c "rm -rf $records && ln -s /var/tmp/open $records"
check 'records in a place that is not ours: the job runs' on srun -wn1 true
is 'and nothing is written there' "$(ls -A "$state/n1/var/tmp/open")" ''
all_idle 'every node is idle after all that'
done_testing
