#!/bin/sh
# gradcomp bench compressors: every installed compressor gives a row for each kind of
# input, and what it is told wrongly is refused by name.
# shellcheck source=tests/tap.sh
. "$GRADCOMP_SRC/tests/tap.sh"
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

bench --compressors 'topk:density=0.5;none' >"$tmp/table"
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
done_testing
