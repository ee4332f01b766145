#!/bin/sh
# gradcomp probe without a job: one rank, and what it refuses. On nodes: tests/cluster/probe.t.
# shellcheck source=tests/tool/tool.sh
. "$GRADCOMP_SRC/tests/tool/tool.sh"

real=$GRADCOMP_BUILD/lib/gradcomp
export GRADCOMP_MODELS="$GRADCOMP_SRC/etc/models"
# shellcheck disable=SC2317 # called by check
quick () { GRADCOMP_PLUGIN_PATH=$real "$gradcomp" probe --seconds 0.5 --numbers 4096 --output "$tmp/m.ini" "$@"; }

check 'one rank alone' quick --compressors none,topk:density=0.01 --name 'a node'
like 'says that messages cannot be measured' "$said" 'what a message between nodes costs cannot be measured'
is 'the name' "$(sed -n 's/^name = //p' "$tmp/m.ini")" 'a node'
is 'two compressors' "$(grep -c '^spec = ' "$tmp/m.ini")" 2
check 'which gradcomp plan reads' env GRADCOMP_PLUGIN_PATH="$real" "$gradcomp" plan --model resnet50 --machine "$tmp/m.ini" \
	--collectives ring --schedules single
check 'all compressors, in half a second or not much more' quick --compressors all --sleeping
is 'what slows passes down' "$(grep -c '^slowed_by_[a-z]* = ' "$tmp/m.ini")" 2
like 'and how far what was measured is off' "$(cat "$tmp/m.ini")" 'spread = 0.'
is 'a program on a GPU leaves the cores alone' "$(sed -n 's/^beside_application = //p' "$tmp/m.ini")" 1
is 'and loses nothing to compressing or exchanging there' "$(sed -n 's/^slowed_by_[a-z]* = //p' "$tmp/m.ini" | tr '\n' ' ')" '0 0 '
# A program that shares one CPU with a thread that compresses: twice as long, give or take what else runs there.
one_cpu=$(taskset -cp $$ | sed 's/.*: *\([0-9]*\).*/\1/')
check 'ranks on one CPU' taskset -c "$one_cpu" env GRADCOMP_PLUGIN_PATH="$real" "$gradcomp" probe --seconds 2 --compressors none \
	--output "$tmp/shared.ini"
slowed=$(sed -n 's/^slowed_by_compute = //p' "$tmp/shared.ini")
# Beside k others on that CPU it is 1 / (k + 1), give or take their comings and goings.
name="compressing there makes a program take 1.2 to 10 times as long ($slowed)"
if [ "$(pace)" -gt 150 ]; then
	check 'compressing there is told of, on a machine that is busy' python3 -c "assert 0 <= $slowed <= 99"
else
	check "$name" python3 -c "assert 0.2 <= $slowed <= 9"
fi

before=$(cat "$tmp/m.ini")
refuse 'a compressor that is not there' quick --compressors none,nope
like 'is named' "$said" "'nope' is not installed"
refuse 'a parameter that is none' quick --compressors topk:density=7
like 'is told of' "$said" 'density'
refuse 'no folder' quick --output "$tmp/none/m.ini"
like 'is named too' "$said" "$tmp/none/m.ini: cannot be written"
refuse 'a folder in place of a file' quick --output "$tmp"
refuse 'seconds' quick --seconds 0
like 'from 0.5 on' "$said" "--seconds '0' is not from 0.5 to 3600"
refuse 'numbers' quick --numbers 1e99
refuse 'a name that a machine file cannot have' quick --name 'a;b'
like 'before anything is measured' "$said" "--name 'a;b' is not"
refuse 'a name that is longer' quick --name "$(printf %064d 0)"
mkfifo "$tmp/pipe"
refuse 'a pipe in place of a file' quick --output "$tmp/pipe"
like 'before anything is measured' "$said" "$tmp/pipe: cannot be written"
is 'the file is as it was' "$(cat "$tmp/m.ini")" "$before"
done_testing
