#!/bin/bash
# gradcomp probe under srun on shaped nodes, the model that a job leaves, and the plan that
# follows from both.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"

nodes=4
real_jobs
library_program train
# shellcheck disable=SC2317 # called by check
probe () { timeout 90 "${bed[@]}" run -u alice srun --mpi=pmix -D "$tmp/run" "$@"; }

as root true && "${bed[@]}" rate 200mbit
check 'four nodes are measured' probe -N4 "$tmp/bin/gradcomp" probe --seconds 3 --output machine.ini --numbers 65536 \
	--compressors none,cast:type=fp16,topk:density=0.01,block:bits=8 --collectives ring,tree
like 'a table of it' "$said" 'between nodes'
is 'one rank writes the file' "$(stat -c %u run/machine.ini)" 61001
# value SECTION KEY FIELD
value () { sed -n "/^\[$1\]/,/^\[/s/^$2 = //p" run/machine.ini | awk "{print \$$3}"; }
is 'nodes' "$(value machine nodes 1) $(value machine ranks_per_node 1)" '4 1'
# 200 Mbit/s are 25 million bytes a second, less what headers take.
check 'a byte between nodes costs what the link lets through' \
	awk "BEGIN { b = $(value network byte 1); exit !(b > 0.9 / 25e6 && b < 2 / 25e6) }"
note "a byte: $(value network byte 1) s"
is 'nothing is said of what is not there' "$(grep -c '^\[node\]' run/machine.ini)" 0
is 'compressors in full' "$(grep -c '^spec = \(none\|cast:type=fp16\|topk:density=0.01\|block:bits=8\)' run/machine.ini)" 4
is 'calls of both collectives' "$(grep -c '^allreduce = ' run/machine.ini)" 2

check 'two ranks a node' probe -N2 -n4 "$tmp/bin/gradcomp" probe --seconds 1 --output two.ini --numbers 4096 \
	--compressors none --collectives hier
is 'measure both levels' "$(grep -c '^\[node\]\|^\[network\]' run/two.ini)" 2
is 'and the levels of hier' "$(grep -c '^shard = ' run/two.ini)" 1

check 'one rank alone' probe -N1 -n1 "$tmp/bin/gradcomp" probe --seconds 0.5 --output alone.ini --numbers 4096 --compressors none
like 'says what cannot be measured' "$said" 'one node: what a message between nodes costs cannot be measured'
is 'and writes what can' "$(grep -c '^memory = ' run/alone.ini)" 1

refuse 'a folder that is not there' probe -N2 "$tmp/bin/gradcomp" probe --output "$tmp/nowhere/m.ini"
like 'is named before anything is measured' "$said" 'nowhere/m.ini: cannot be written'
refuse 'a compressor that is not there' probe -N2 "$tmp/bin/gradcomp" probe --compressors none,nope
like 'is named' "$said" "'nope' is not installed"
refuse 'tasks that do not know each other' timeout 60 "${bed[@]}" run -u alice srun --mpi=none -N2 -D "$tmp/run" \
	"$tmp/bin/gradcomp" probe --output nopmix.ini
like 'are told what is missing' "$said" 'srun --mpi=pmix'
check 'and write nothing' test ! -e run/nopmix.ini

check 'a job leaves its model' probe -N4 --gradcomp=none --gradcomp-record=model.ini "$tmp/train"
is 'with its tensors' "$(grep -c '^[0-9]* = .* forward .* backward ' run/model.ini)" \
	"$(sed -n 's/^tensors = //p' run/model.ini)"
check 'and a plan is made of both' probe -N1 -n1 "$tmp/bin/gradcomp" plan --model model.ini --machine machine.ini --collectives ring
like 'with what was measured' "$said" 'cast:type=fp16'
all_idle 'no node was drained'
done_testing
