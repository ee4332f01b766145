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
like "a rank that fails: is named" "$said" "rank 1 ended with status 5; the others are ended"
none_left "a rank that fails"
ends 137 "a rank that is killed" "$gradcomp" run -n 3 sh -c "[ \$RANK = 2 ] && kill -9 \$\$; trap '' TERM; sleep 98765.$$ & wait; wait"
like "a rank that is killed: is named" "$said" "rank 2 was ended by signal 9 (Killed)"
none_left "a rank that is killed, though others do not hear SIGTERM"
# shellcheck disable=SC2016 # for the ranks
ends 0 "on_failure=shrink" env GRADCOMP_ON_FAILURE=shrink "$gradcomp" run -n 3 sh -c '[ $RANK = 1 ] && { sleep 98765.'$$' & kill -9 $$; }
	while pgrep -f "^sleep 98765.'$$'" > /dev/null; do sleep 0.1; done; echo "end $RANK"'
like "on_failure=shrink: is named" "$said" "rank 1 was ended by signal 9 (Killed); the others go on"
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
like "no such command: is named" "$said" "no-such-command cannot be run: No such file"
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

refuse "no command" "$gradcomp" run -n 2
refuse "no number" "$gradcomp" run -n 0 true
like "no number: what would be" "$said" "a number from 1 to 4096"
refuse "no such option" "$gradcomp" run --gradcomp-nothing=1 true

said=$(RANK=1 WORLD_SIZE=4 "$gradcomp" bench reduce --tensors 64x64 --iters 2 2>&1)
like "a rank that another launcher has started alone is told" "$said" "this is rank 1 of 4, but nothing says where the others are"
refuse "half of what run sets" env GRADCOMP_RUN=x "$gradcomp" bench reduce --tensors 64x64 --iters 2
done_testing
