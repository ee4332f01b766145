#!/bin/bash
# gradcomp run: ranks without Slurm are one job, one's end is all ranks' end, and nothing is left behind.
# shellcheck source=tests/tool/tool.sh
. "$GRADCOMP_SRC/tests/tool/tool.sh"
export GRADCOMP_PLUGIN_PATH=$GRADCOMP_BUILD/lib/gradcomp
cd "$tmp" || exit 1

for n in 1 2 3 7; do
	check "$n ranks" "$gradcomp" run -n "$n" --gradcomp=topk:density=0.5 --gradcomp-report="$tmp/$n.json" \
		"$gradcomp" bench reduce --tensors 64x64 --iters 2
	like "$n ranks: are one job" "$said" "topk:density=0.5 on $n rank"
	like "$n ranks: its report" "$(cat "$n.json")" "\"ranks\": $n"
done
# shellcheck disable=SC2016 # for the ranks
said=$("$gradcomp" run -n3 sh -c 'echo "$RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $WORLD_SIZE ${MASTER_PORT:+port} $MASTER_ADDR"' | sort)
is "what ranks are told" "$said" "0 0 3 3 port 127.0.0.1
1 1 3 3 port 127.0.0.1
2 2 3 3 port 127.0.0.1"

# ends CODE WHAT COMMAND...: the command ends with CODE; $said, and whether its sleepers are gone
ends () {
	local want=$1 what=$2
	shift 2
	said=$(timeout "$(scaled 40)" "$@" 2>&1 < /dev/null)
	is "$what: the exit status" $? "$want"
}
sleepers () { pgrep -f "^sleep 98765.$$" ; }
none_left () { check "$1: no rank is left" wait_for 15 none; }
none () { ! sleepers > /dev/null; }
ends 5 "a rank that fails" "$gradcomp" run -n 3 sh -c "[ \$RANK = 1 ] && exit 5; sleep 98765.$$ & wait"
like "a rank that fails: is named" "$said" "rank 1 on this host ended with status 5; the others are ended"
none_left "a rank that fails"
ends 137 "a rank that is killed" "$gradcomp" run -n 3 sh -c "[ \$RANK = 2 ] && kill -9 \$\$; trap '' TERM; sleep 98765.$$ & wait; wait"
like "a rank that is killed: is named" "$said" "rank 2 on this host was ended by signal 9 (Killed)"
none_left "a rank that is killed, though others do not hear SIGTERM"
# shellcheck disable=SC2016 # for the ranks
ends 0 "on_failure=shrink" env GRADCOMP_ON_FAILURE=shrink "$gradcomp" run -n 3 sh -c '[ $RANK = 1 ] && { sleep 98765.'$$' & kill -9 $$; }
	while pgrep -f "^sleep 98765.'$$'" > /dev/null; do sleep 0.1; done; echo "end $RANK"'
like "on_failure=shrink: is named" "$said" "rank 1 on this host was ended by signal 9 (Killed); the others go on"
is "on_failure=shrink: the others go on, and what the rank has started is ended" "$(grep -c '^end [02]' <<< "$said")" 2
# shellcheck disable=SC2016 # as above
ends 0 "--gradcomp-on-failure=shrink" "$gradcomp" run -n 2 --gradcomp-on-failure=shrink sh -c 'exit $RANK'
ends 1 "--gradcomp-on-failure of something else" "$gradcomp" run -n 2 --gradcomp-on-failure=shrnk echo started
like "--gradcomp-on-failure of something else: is named" "$said" "'shrnk' is not a choice"
ends 1 "a SPEC with a slip" "$gradcomp" run -n 2 --gradcomp=nnoe echo started
like "a SPEC with a slip: says what was meant" "$said" "did you mean 'none'?"
is "a SPEC with a slip: no rank is started" "$(grep -c started <<< "$said")" 0
# slip OPTION VALUE: what is said of a value that is none begins with the option, as it was typed
slip () {
	ends 1 "$1 with a slip" "$gradcomp" run -n 2 "$1=$2" echo started
	like "$1 with a slip: is named" "$said" "option $1"
	is "$1 with a slip: not a variable that nobody has set" "$(grep -c 'environment\|started' <<< "$said")" 0
}
slip --gradcomp nnoe
slip --gradcomp-collective rnig
slip --gradcomp-schedule typo
slip --gradcomp-auto-attach maybe
slip --gradcomp-on-failure shrnk
slip --gradcomp-report "$tmp/%q.json"
slip --gradcomp-record "$tmp/%q.model"
slip --gradcomp-trace "$tmp/%q.trace"
ends 1 "a variable with a slip, beside an option" env GRADCOMP_SCHEDULE=typo "$gradcomp" run -n 2 --gradcomp=none echo started
like "a variable with a slip, beside an option: is named" "$said" "environment GRADCOMP_SCHEDULE"
# shellcheck disable=SC2016 # for the ranks
ends 0 "options of srun's and of this command" env GRADCOMP_OPTIONS=report "$gradcomp" run --gradcomp=none --gradcomp-auto-attach=no \
	sh -c 'echo "$GRADCOMP $GRADCOMP_AUTO_ATTACH, $GRADCOMP_OPTIONS"'
is "options of srun's and of this command: all are known as such" "$said" "none no, report compressor auto_attach"
ends 0 "--gradcomp=off, where nothing is installed" env GRADCOMP_PLUGIN_PATH="$tmp" "$gradcomp" run --gradcomp=off --gradcomp-report=r true
ends 3 "on_failure=shrink: none ends well" env GRADCOMP_ON_FAILURE=shrink "$gradcomp" run -n 2 sh -c 'exit 3'
ends 127 "no such command" "$gradcomp" run -n 2 no-such-command
like "no such command: is named" "$said" "no-such-command on this host cannot be run: No such file"
is "no such command: said once" "$(grep -c 'cannot be run' <<< "$said")" 1
ends 126 "no program" "$gradcomp" run -n 2 "$tmp"

# started WHAT: three ranks sleep below $job
started () {
	"$gradcomp" run -n 3 sh -c "exec sleep 98765.$$" 2> err & job=$!
	check "$1: the ranks run" wait_for 10 three
}
three () { [ "$(sleepers | wc -l)" = 3 ]; }
for signal in TERM HUP; do
	started "SIG$signal"
	kill -$signal $job
	wait $job
	is "SIG$signal: the exit status" $? $((128 + $(kill -l $signal)))
	none_left "SIG$signal"
done
# A shell's background job ignores SIGINT, and so would the command.
timeout --foreground -k 60 -s INT --preserve-status "$(scaled 1)" "$gradcomp" run -n 2 sleep 98765.$$ 2> err
is "^C: the exit status" $? 130
none_left "^C"
started "killed"
kill -9 $job
wait $job 2> /dev/null
none_left "killed"

cat > ssh << 'SSH'
#!/bin/sh
# A stand-in: host `off` cannot be reached, the others are this machine.
[ "$1" = off ] && exit 255
exec sh -c "$2"
SSH
chmod 755 ssh
check "two hosts" "$gradcomp" run --ssh "$tmp/ssh" --hosts a:2,b:2 --gradcomp=topk:density=0.5 "$gradcomp" bench reduce --tensors 64x64 --iters 2
like "two hosts: one job" "$said" "topk:density=0.5 on 4 ranks"
# shellcheck disable=SC2016 # for the ranks
said=$("$gradcomp" run --ssh "$tmp/ssh" --hosts a:2,b sh -c 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $PWD"' | sort)
is "two hosts: what ranks are told" "$said" "0 0 3 a $tmp
1 1 3 a $tmp
2 0 3 a $tmp"
ends 9 "a rank elsewhere that fails" "$gradcomp" run --ssh "$tmp/ssh" --hosts a:2,b sh -c "[ \$RANK = 2 ] && exit 9; sleep 98765.$$ & wait"
like "a rank elsewhere that fails: is named" "$said" "rank 2 on b ended with status 9"
none_left "a rank elsewhere that fails"
ends 255 "a host that cannot be reached" "$gradcomp" run --ssh "$tmp/ssh" --hosts a,off sleep 98765.$$
like "a host that cannot be reached: is named" "$said" "host off cannot be reached"
none_left "a host that cannot be reached"
# ssh on a terminal, about a key that it does not know.
printf '#!/bin/sh\nread -r answer < /dev/tty\n' > asks
chmod 755 asks
ends 137 "what asks at the terminal" script -qec "$gradcomp run --ssh $tmp/asks --hosts a:1,b:1 true" /dev/null
like "what asks at the terminal: is said" "$said" "'$tmp/asks a' asks something at the terminal, which it cannot do here"

# A real sshd, with a configuration, keys and a port of its own; root's wants a folder in /run, which only
# its service makes.
run_sshd () { exec /usr/sbin/sshd -D -f "$tmp/sshd_config" 2> sshd.log; }
if [ "$(id -u)" = 0 ] && [ ! -d /run/sshd ]; then
	run_sshd () { exec unshare --mount sh -c 'mount -t tmpfs none /run && mkdir /run/sshd && exec "$@"' sh /usr/sbin/sshd -D -f "$tmp/sshd_config" 2> sshd.log; }
fi
if [ -x /usr/sbin/sshd ] && command -v ssh-keygen > /dev/null; then
	ssh-keygen -q -t ed25519 -N '' -f hostkey
	ssh-keygen -q -t ed25519 -N '' -f key
	port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
	printf '%s\n' "Port $port" "ListenAddress 127.0.0.1" "HostKey $tmp/hostkey" "PidFile $tmp/sshd.pid" "AuthorizedKeysFile $tmp/key.pub" \
		"StrictModes no" "UsePAM no" "PermitRootLogin yes" "PasswordAuthentication no" > sshd_config
	run_sshd & sshd=$!
	cleanup () { kill "$sshd" 2> /dev/null; }
	by="ssh -p $port -i $tmp/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=$tmp/known -o LogLevel=ERROR"
	check "sshd: listens" wait_for 10 eval "$by 127.0.0.1 true"
	check "sshd: two hosts" "$gradcomp" run --ssh "$by" --hosts 127.0.0.1:2,localhost:1 --gradcomp=topk:density=0.5 "$gradcomp" bench reduce --tensors 64x64 --iters 2
	like "sshd: one job" "$said" "topk:density=0.5 on 3 ranks"
	ends 9 "sshd: a rank that fails" "$gradcomp" run --ssh "$by" --hosts 127.0.0.1:2,localhost:1 sh -c "[ \$RANK = 2 ] && exit 9; sleep 98765.$$ & wait"
	like "sshd: a rank that fails is named" "$said" "rank 2 on localhost ended with status 9"
	none_left "sshd: a rank that fails"
	"$gradcomp" run --ssh "$by" --hosts 127.0.0.1:3 sh -c "exec sleep 98765.$$" 2> err & job=$!
	check "sshd: the ranks run" wait_for 20 three
	kill -9 $job
	wait $job 2> /dev/null
	none_left "sshd: the command is killed"
else
	skip "sshd: ranks on two hosts" "openssh-server is not installed"
fi

refuse "no command" "$gradcomp" run -n 2
refuse "no number" "$gradcomp" run -n 0 true
like "no number: what would be" "$said" "a number from 1 to 4096"
refuse "hosts without a number" "$gradcomp" run --hosts a:x true
refuse "another number than hosts have" "$gradcomp" run -n 3 --hosts a:2 true
refuse "no such option" "$gradcomp" run --gradcomp-nothing=1 true
refuse "an agent that nobody asked for" sh -c "echo | '$gradcomp' run --agent"
refuse "half of an order" sh -c "printf 'gradcomp-run 1\0host\0000\0' | '$gradcomp' run --agent"

said=$(RANK=1 WORLD_SIZE=4 "$gradcomp" bench reduce --tensors 64x64 --iters 2 2>&1)
like "a rank that another launcher has started alone is told" "$said" "this is rank 1 of WORLD_SIZE=4, but nothing says where the others are"
refuse "half of what run sets" env GRADCOMP_RUN=x "$gradcomp" bench reduce --tensors 64x64 --iters 2
done_testing
