#!/bin/sh
# gradcomp bench compressors: every installed compressor gives a row for each kind of
# input; bench collectives: so does every primitive of a collective; bench io goes over a
# dataset; and what they are told wrongly is refused by name.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
GRADCOMP_PLUGIN_PATH=$GRADCOMP_BUILD/lib/gradcomp
export GRADCOMP_PLUGIN_PATH
bench () { "$gradcomp" bench compressors --rows 33 --columns 65 --runs 1 "$@" 2>"$tmp/err"; }

installed=$(find "$GRADCOMP_PLUGIN_PATH/compressors" -name '*.so' | wc -l)
head -c 4000 /dev/zero >"$tmp/zeros"
bench --json "$tmp/rows" --gradients "$tmp/zeros" >"$tmp/table"
is 'all that are installed are measured' "$?" 0
is 'a row for each compressor and input' "$(($(wc -l <"$tmp/table") - 2))" "$((3 * installed))"
is 'and in the JSON file' "$(grep -c '"compressor"' "$tmp/rows")" "$((3 * installed))"
is 'none leaves everything as it is' "$(grep -c '^none .* 32.0000   0.00e+00$' "$tmp/table")" 3
is 'nothing is said of a run that went well' "$(cat "$tmp/err")" ''

bench --compressors topk:density=0.5,none >"$tmp/table"
is 'SPECs after one another' "$(sed -n '3,$s/ .*//p' "$tmp/table" | tr '\n' ' ')" 'topk:density=0.5 none topk:density=0.5 none '
bench --compressors nope >/dev/null
is 'a compressor that is not there' "$?" 1
like 'is named' "$(cat "$tmp/err")" "'nope' is not installed"
bench --compressors topk:density=2 >/dev/null
is 'a parameter out of range' "$?" 1
like 'is named' "$(cat "$tmp/err")" 'density'
bench --gradients "$tmp/none" >/dev/null
is 'a file that is not there' "$?" 1
like 'is named' "$(cat "$tmp/err")" "$tmp/none"
printf '\377\377\377\377' >"$tmp/nan"
bench --gradients "$tmp/nan" >/dev/null
is 'a file with a NaN' "$?" 1
bench --rows 0 >/dev/null
is 'no rows' "$?" 2
like 'says what would be right' "$(cat "$tmp/err")" "must be from 1 to 65536"

collectives () { "$gradcomp" bench collectives --bytes 4K,12 --iters 3 --seconds 0.01 "$@" 2>"$tmp/err"; }
collectives --json "$tmp/rows" --compressors block,lossless >"$tmp/table"
is 'all collectives are measured' "$?" 0
installed=$(find "$GRADCOMP_PLUGIN_PATH/collectives" -name '*.so' | sed 's|.*/||; s|\.so$||' | sort)
is 'each of them' "$(sed 1d "$tmp/table" | cut -d' ' -f1 | sort -u)" "$installed"
is 'a ring codes in three ways, under each code and for each size' \
	"$(grep -c '"ring", "primitive": "coded-' "$tmp/rows")" 12
python3 -c 'import json, sys; [r["seconds"] for r in json.load(open(sys.argv[1]))]' "$tmp/rows"
is 'the file is JSON' "$?" 0
collectives --collectives ring:small=0,tree --primitives all-reduce >"$tmp/table"
is 'SPECs and primitives that are asked for' "$(sed 1d "$tmp/table" | tr -s ' ' | cut -d' ' -f1,2 | sort -u | tr '\n' ' ')" \
	'ring:small=0 all-reduce tree all-reduce '
collectives --collectives nope >/dev/null
is 'a collective that is not there' "$?" 1
like 'is named' "$(cat "$tmp/err")" "--collectives: 'nope' is not installed"
collectives --primitives all-reduce,all-red >/dev/null
is 'a primitive that is none' "$?" 1
like 'is named, with those that are' "$(cat "$tmp/err")" "'all-red' is none of all-reduce, reduce-scatter"
collectives --compressors topk >/dev/null
is 'a compressor that is no code' "$?" 1
like 'is named' "$(cat "$tmp/err")" "'topk' is no code"
collectives --seconds 0 >/dev/null
is 'no time' "$?" 2

io () { "$gradcomp" bench io --memory 16M --steps 2 --step-ms 1 --json "$tmp/rows" "$@" 2>"$tmp/err"; }
io --samples 20 --bytes 10K >"$tmp/table"
is 'values that are made up' "$? $(cat "$tmp/err")" '0 '
is 'three epochs, values, steps' "$(sed 's/   *.*//' "$tmp/table" | tr '\n' ';')" \
	'epoch 1;epoch 1, all ranks;epoch 2;epoch 2, all ranks;epoch 3;epoch 3, all ranks;local values, a rank;a step with its batch;'
is 'and in the JSON file' "$(grep -c '"case"' "$tmp/rows")" 8
mkdir "$tmp/files"
for i in 1 22 333; do echo "$i" >"$tmp/files/$i"; done
io --source "$tmp/files" --epochs 2 >"$tmp/table"
is 'files' "$? $(grep -c . "$tmp/table")" '0 6'
io --source "$tmp/nowhere" >/dev/null
is 'a source that is not there' "$?" 1
like 'is named' "$(cat "$tmp/err")" "$tmp/nowhere"
io --bytes 4 >/dev/null
is 'values too short to be told apart' "$?" 2
done_testing
