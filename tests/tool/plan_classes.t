#!/bin/sh
# gradcomp plan with classes of ranks: --ranks and --measured, against the arithmetic of models of one and two tensors.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
export GRADCOMP_PLUGIN_PATH="$GRADCOMP_BUILD/lib/gradcomp" GRADCOMP_MODELS="$GRADCOMP_SRC/etc/models"
unset GRADCOMP GRADCOMP_CONF

# Four ranks on 1 Gbit/s and 40 us; a call was measured, which does not count on other links.
cat >"$tmp/lab.machine" <<'EOF2'
[machine]
name = lab
nodes = 4
ranks_per_node = 1
memory = 1e-14
reduce = 1e-14

[network]
message = 4e-5
byte = 8e-9

[compressor 1]
spec = none
encode = 0 0
decode = 0 0
EOF2
printf '[collective 1]\nspec = ring\nallreduce = 0.04 0\n' | cat "$tmp/lab.machine" - >"$tmp/calls.machine"
printf '[model]\nname = one\nbatch = 32\n\n[tensors]\n0 = weight 1000x1000 forward 2e-2 backward 4e-2\n' >"$tmp/one.model"
sed '/^batch/d' "$tmp/one.model" >"$tmp/unknown.model"
printf '[model]\nname = two\n\n[tensors]\n0 = a 500x1000 forward 0 backward 3e-2\n1 = b 500x1000 forward 0 backward 3e-2\n' >"$tmp/two.model"
plan () {
	"$gradcomp" plan --model "$tmp/${model:-one}.model" --machine "$tmp/${machine:-lab}.machine" --collectives ring \
		--schedules "${schedule:-single}" --compressors none --dense none --half none "$@" 2>"$tmp/err"
}
# asked NAME JSON-EXPRESSION ARGUMENT...: s is what the first table says of the slowest, c its classes; the expression holds
asked () {
	asked_name=$1 asked_what=$2
	shift 2
	plan --json "$@" >"$tmp/json"
	check "$asked_name" python3 -c "import json, sys
t = json.load(open(sys.argv[1]))['tables'][0]
s = t['slowest']
c = s['classes']
def near(a, b): return abs(a - b) < 1e-3 * b
assert $asked_what, s" "$tmp/json"
}

# A ring of four sends 6 messages of a quarter, 48.24 ms behind passes of 60 ms; a rank of half the speed computes for 120 ms.
asked 'a step is as long as that of the slowest' "near(s['step_s'], 0.16824) and s['step_s'] == t['best']['step_s']" --ranks 2:speed=0.5
asked 'which costs what all would gain by being as the fastest' "near(s['alike_s'], 0.10824) and near(s['cost_s'], 0.06)" --ranks 2:speed=0.5
asked 'by its computing' "s['by'] == 'computing' and near(s['computing_s'], 0.06) and s['link_s'] == 0" --ranks 2:speed=0.5
asked 'and is named' "c[s['class']]['ranks'] == 2 and c[s['class']]['speed'] == 0.5" --ranks 2:speed=0.5
# 128 samples: 42.67 for a rank of speed 1, 21.33 for one of 0.5. Whole ones: 43 and 21, of which 43 take 60 x 43 / 32 ms.
asked 'with samples by speed' "[x['samples'] for x in c] == [21, 43] and near(s['divided_s'], 0.04824 + 0.06 * 43 / 32)" --ranks 2:speed=0.5
asked 'a step gains what they say' "near(s['gain_s'], 0.12 - 0.06 * 43 / 32)" --ranks 2:speed=0.5
# 128 = 18 + 36 + 2 x 37: one rank of half the speed, three of which two have one more.
asked 'samples that are left go to some of a class' "[(x['samples'], x['with_one_more']) for x in c] == [(18, 0), (36, 2)]" --ranks 1:speed=0.5
asked 'all of them are dealt' "sum(x['ranks'] * x['samples'] + x['with_one_more'] for x in c) == 128" --ranks 1:speed=0.3 --ranks 2:speed=1.7
asked 'each has one at least' "min(x['samples'] for x in c) == 1" --ranks 1:speed=0.001
model=unknown
asked 'without a batch work is divided as shares' "near(c[0]['share'], 2 / 3) and near(c[1]['share'], 4 / 3) and 'samples' not in c[0]" --ranks 2:speed=0.5
asked 'which take as long on all' "near(s['divided_s'], 0.04824 + 0.08)" --ranks 2:speed=0.5
plan --ranks 2:speed=0.5 >"$tmp/said"
like '... as is said' "$(cat "$tmp/said")" '0.667 of the samples of a rank on 2 of speed 0.5, 1.33 of the samples of a rank on 2 of speed 1'
sed 's/^batch = 32/batch = 9007199254740992/' "$tmp/one.model" >"$tmp/huge.model"
model=huge
asked 'and with one of too many samples to count' "'samples' not in c[0] and near(c[0]['share'], 2 / 3)" --ranks 2:speed=0.5
model=
asked 'a faster class costs what the others lack' "near(s['step_s'], 0.10824) and near(s['alike_s'], 0.07824) and c[s['class']]['ranks'] == 3" --ranks 1:speed=2
asked 'classes of all ranks leave none of speed 1' "near(s['step_s'], 0.16824) and near(s['alike_s'], 0.07824) and len(c) == 2" --ranks 1:speed=2 --ranks 3:speed=0.5

# At 100 Mbit/s the six messages take 480.24 ms.
asked 'the ring goes at the slowest link' "near(s['step_s'], 0.54024) and near(s['alike_s'], 0.10824)" --ranks 1:link=100Mbit
asked 'which is named' "s['by'] == 'link' and near(s['link_s'], 0.432) and near(c[s['class']]['bits_per_s'], 1e8)" --ranks 1:link=100Mbit
asked 'where less work gains nothing' "s['gain_s'] == 0 and near(s['divided_s'], s['step_s'])" --ranks 1:link=100Mbit
asked 'its latency may be its own' "near(s['step_s'], 0.546)" --ranks 1:link=100M/1ms
asked 'a link that some lack is no gain' "near(s['step_s'], 0.10824) and near(s['alike_s'], 0.06504) and c[s['class']]['ranks'] == 3" --ranks 1:link=10G
asked 'both: a slow rank and a slow link' "near(s['step_s'], 0.60024) and near(s['computing_s'], 0.06) and near(s['link_s'], 0.432) and near(s['gain_s'], 0.12 - 0.06 * 43 / 32)" \
	--ranks 2:speed=0.5 --ranks 1:link=100M
machine=calls
asked 'a call that was measured counts with other speeds' "near(s['step_s'], 0.16)" --ranks 1:speed=0.5
asked '... not on other links' "near(s['alike_s'], 0.10824)" --ranks 1:link=100M
machine=
asked 'alike, none costs anything' "s['by'] == 'nothing' and s['cost_s'] == 0 and s['class'] is None" --ranks 4:speed=0.5

# Of two tensors the first exchange of 24.24 ms is beside the second half of the pass, which half the speed makes 120 ms.
model=two schedule=wfbp
asked 'what is hidden stays so' "near(s['step_s'], 0.14424) and near(s['alike_s'], 0.08424)" --ranks 1:speed=0.5
# Where exchanges are longer than the pass, only the time until the first begins counts: 7.5 + 48.48 against 3.75 + 48.48 ms.
asked 'and the link may be what takes time' "near(s['step_s'], 0.05598) and near(s['alike_s'], 0.05223)" --ranks 2:speed=4 --ranks 2:speed=8
model='' schedule=

plan --ranks 2:speed=0.5 >"$tmp/said"
like 'it is said: the cost' "$(cat "$tmp/said")" 'the slowest costs 60 ms of the 168 ms of a step, 35.7 %: with all ranks as the fastest it takes 108 ms'
like 'by whom and what' "$(cat "$tmp/said")" '2 ranks of speed 0.5 and 1 Gbit/s hold it up, by computing: '
like 'and the gain' "$(cat "$tmp/said")" 'divided by speed (21 samples on 2 of speed 0.5, 43 samples on 2 of speed 1) a step takes 129 ms: it gains 39.4 ms, 23.4 %'
plan --ranks 1:link=100M >"$tmp/said"
like 'that there is none' "$(cat "$tmp/said")" 'to give the slowest less work gains nothing: the link is what is slow'
plan >"$tmp/said"
unlike 'nothing is said where no classes are asked for' "$(cat "$tmp/said")" 'the slowest'
plan --ranks 1:speed=0.5 --nodes 4,8 >"$tmp/said"
is 'of several nodes it is said of the first and the last' "$(grep -c '^the slowest costs' "$tmp/said")" 2

# A report of four ranks, of which rank 0 is one of the slower: its speed is 1.
# report SECONDS[/MBIT]...: what each rank computes, and what its link carries
report () {
	python3 -c 'import json, sys
rows = [(*map(float, a.split("/")), None)[:2] for a in sys.argv[1:]]
print(json.dumps({"schema": 1, "times": [{"rank": r, "computing_s": s, "link_mbit": l} for r, (s, l) in enumerate(rows)]}))' "$@"
}
if report 0.06 0.03 0.0603 0.0301 >"$tmp/report.json" && "$gradcomp" report "$tmp/report.json" >/dev/null 2>&1; then
	asked 'measured ranks are in classes' "[x['ranks'] for x in c] == [2, 2] and abs(c[1]['speed'] - 2) < 0.02 and abs(c[0]['speed'] - 1) < 0.01" \
		--measured "$tmp/report.json"
	asked 'speed 1 is rank 0' "near(s['step_s'], 0.04824 + 0.06 * 2 / (1 + 0.06 / 0.0603))" --measured "$tmp/report.json"
	report 0.06 0.06/100 0.06/900 0.06 >"$tmp/links.json"
	asked 'a measured link that is slow is a class' "[(x['ranks'], x['bits_per_s']) for x in c if x['bits_per_s'] < 9e8] == [(1, 1e8)]" \
		--measured "$tmp/links.json"
	asked 'that holds up the others' "s['by'] == 'link' and near(s['step_s'], 0.54024)" --measured "$tmp/links.json"
	report 1 2 3 >"$tmp/three.json"
	plan --measured "$tmp/three.json"
	is 'a report of another job' "$?" 2
	like 'is refused with both sizes' "$(cat "$tmp/err")" "three.json is of 3 ranks, and the plan is of 4 (4 x 1)"
	report 1 2 0 1 >"$tmp/zero.json"
	plan --measured "$tmp/zero.json"
	is 'a rank that has no time' "$?" 1
	like 'is said' "$(cat "$tmp/err")" 'zero.json does not say how long each of its ranks computes'
	report >"$tmp/none.json"
	refuse 'a report without times' plan --measured "$tmp/none.json"
	refuse 'a report that is none' plan --measured "$tmp/one.model"
	refuse 'a report that is not there' plan --measured "$tmp/nowhere.json"
	# shellcheck disable=SC2046
	report $(seq 1 0.1 10) >"$tmp/many.json"
	plan --nodes 91 --measured "$tmp/many.json" --json >"$tmp/json"
	is 'many speeds become as many classes as there may be' "$? $(python3 -c 'import json, sys
c = json.load(open(sys.argv[1]))["tables"][0]["slowest"]["classes"]
print(len(c) <= 16 and sum(x["ranks"] for x in c))' "$tmp/json")" '0 91'
fi

# wrong TEXT ARGUMENT...: usage, and what is said of it
wrong () {
	wrong_text=$1
	shift
	plan "$@" >/dev/null
	is "refused: $*" "$?" 2
	like '... by name' "$(cat "$tmp/err")" "$wrong_text"
}
wrong "--ranks 0:speed=1: the count is '0'; give the number of ranks" --ranks 0:speed=1
wrong "the count is '-2'" --ranks -2:speed=1
wrong "the count is '99999999999999999999'" --ranks 99999999999999999999:speed=1
wrong "--ranks has 5 ranks in all, and the job has 4 (4 x 1)" --ranks 5:speed=1
wrong "--ranks has 6 ranks in all, and the job has 4 (4 x 1)" --ranks 3:speed=1 --ranks 3:link=1G
for speed in 0 -1 nan inf 1e9 fast '' 0.5x; do
	wrong "--ranks 1:speed=$speed: speed is '$speed'; give the speed of computing" --ranks "1:speed=$speed"
done
for link in 100 fast -1M 1M/5 0M '' 900T; do
	wrong "--ranks 1:link=$link: link is '$link'; give bits a second with a unit" --ranks "1:link=$link"
done
wrong "there is no key 'sped'; the keys are speed and link" --ranks 1:sped=1
wrong 'speed is given twice' --ranks 1:speed=1,speed=2
wrong 'give speed, link or both' --ranks 1:
wrong "--ranks is '2'; give COUNT:speed=0.5,link=100M" --ranks 2
# shellcheck disable=SC2046
wrong 'one too many; it can be given 16 times' $(for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17; do echo "--ranks=1:speed=$i"; done)
wrong '--measured stands for --ranks' --ranks 1:speed=1 --measured x
wrong '--need goes with neither' --ranks 1:speed=1 --need 0.9
wrong "go with one of --links; --links is '1G,2G'" --ranks 1:link=1M --links 1G,2G
"$gradcomp" plan --parallel --memory 1G --model "$tmp/one.model" --machine "$tmp/lab.machine" --ranks 1:speed=1 2>"$tmp/err"
is 'stages have no classes' "$?" 2
like '... which is said' "$(cat "$tmp/err")" '--parallel goes with neither'
done_testing
