#!/bin/sh
# gradcomp plan: what is predicted and said, in all forms; what makes no sense is refused by
# name. What a prediction rests on is tested in tests/unit.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
export GRADCOMP_PLUGIN_PATH="$GRADCOMP_BUILD/lib/gradcomp" GRADCOMP_MODELS="$GRADCOMP_SRC/etc/models"
unset GRADCOMP GRADCOMP_CONF
lab=$tmp/lab.machine
plan () { "$gradcomp" plan --model "$tmp/small.model" --machine "$lab" "$@" 2>"$tmp/err"; }
# ends STATUS NAME TEXT ARGUMENT...: how it ends, and what is said of it
ends () {
	ends_as=$1 ends_name=$2 ends_text=$3
	shift 3
	"$gradcomp" plan "$@" >"$tmp/out" 2>"$tmp/err"
	is "$ends_name" "$?" "$ends_as"
	like "$ends_name: said" "$(cat "$tmp/err")" "$ends_text"
}
wrong () { ends 2 "$@"; } # usage
fails () { ends 1 "$@"; } # for what the files and SPECs say

# Two nodes of two ranks: 1 Gbit/s between them, memory inside.
cat >"$lab" <<'EOF'
[machine]
name = lab
nodes = 2
ranks_per_node = 2
memory = 2e-10
reduce = 3e-10
beside_application = 1
beside_exchange = 1

[node]
message = 3e-6
byte = 2e-10

[network]
message = 5e-5
byte = 8.4e-9

[compressor 1]
spec = none
encode = 0 0
decode = 0 0

[compressor 2]
spec = cast:type=fp16,saturate=no
encode = 2e-6 4e-10
decode = 2e-6 4e-10

[compressor 3]
spec = topk:density=0.01
encode = 1e-4 2e-9
decode = 1e-5 1e-9
gathered = 1e-9
EOF
sed 's/byte = 8.4e-9/byte = 1e-12/; s/message = 5e-5/message = 1e-6/; s/name = lab/name = quick/' "$lab" >"$tmp/quick.machine"
{
	printf '[model]\nname = small\nbatch = 32\nio = 0\ncopy = 0\nupdate = 0\n\n[tensors]\n'
	for i in 0 1 2 3 4 5 6 7; do
		echo "$i = layer$i.weight 1024x1024 forward 2e-3 backward 4e-3"
	done
	printf '\n[layers]\n'
	for i in 0 1 2 3 4 5 6 7; do
		echo "$i = layer$i tensors $i-$i output 4096 kept 4096 8192 reduces 1"
	done
} >"$tmp/small.model"

# Calls that were measured: of SPECs without what has a default, and of what is not there.
{ cat "$lab" && printf '\n[collective 1]\nspec = ring\nallreduce = 0.5 0\n\n[collective 2]\nspec = nope\nallreduce = 1 0\n'; } >"$tmp/calls.machine"
"$gradcomp" plan --model "$tmp/small.model" --machine "$tmp/calls.machine" --collectives ring --schedules single --json >"$tmp/json"
is 'measured calls' "$?" 0
python3 - "$tmp/json" <<'EOF'
import json, sys
d = json.load(open(sys.argv[1]))
dense = next(r for r in d["tables"][0]["plans"] if r["compressor"] == d["dense"])
assert dense["exchange_s"] == 0.5, dense
assert any(w["what"] == "nope" and "not installed" in w["why"] for w in d["left_out"]), d["left_out"]
EOF
is 'count by a SPEC that leaves out defaults; a collective that is not installed is left out by name' "$?" 0
sed 's/^spec = ring/spec = ring:chnk=1/' "$tmp/calls.machine" >"$tmp/bad"
fails 'a misspelt parameter of a measured call' "collective 'ring:chnk=1'" --model "$tmp/small.model" --machine "$tmp/bad" --collectives ring

plan >"$tmp/table"
is 'a prediction' "$? $(cat "$tmp/err")" '0 '
like 'says what was predicted' "$(cat "$tmp/table")" 'small: 8388608 parameters in 8 tensors, 16.000 ms forward, 32.000 ms backward'
like 'and for what' "$(cat "$tmp/table")" 'lab: measured on 2 x 2 ranks; predicted for 2 x 2 ranks'
is 'a row for each compressor, the quickest first' "$(sed -n '/^compressor/,/^and/p' "$tmp/table" | cut -d' ' -f1 | tr '\n' ' ')" \
	'compressor topk cast:type=fp16 none and '
like 'and in words why: what wins' "$(cat "$tmp/table")" 'times as fast as dense fp32 (none, '
like 'what dense waits for' "$(cat "$tmp/table")" 'with none the link is busy '
like 'what the winner sends and costs' "$(cat "$tmp/table")" ' of the bytes, costs '
like 'what is left out is named once' "$(cat "$tmp/table")" ': no curve in the machine file'
is 'each reason once' "$(grep -c 'no curve in the machine file' "$tmp/table")" 1
plan --all >"$tmp/all"
ok_rows=$(grep -c '^none  ' "$tmp/all")
check 'every combination on request' test "$ok_rows" -gt 6
"$gradcomp" plan --model "$tmp/small.model" --machine "$tmp/quick.machine" --compressors topk,none >"$tmp/table"
is 'dense wins where the network is quick' "$(grep -c '^dense wins: none over ' "$tmp/table")" 1
plan --compute 100 --compressors topk,none >"$tmp/table"
is 'and where what it could save does not count' "$(grep -c '^dense wins: none over ' "$tmp/table")" 1
like 'and what is as quick is named' "$(cat "$tmp/table")" 'as quick within 2 %: topk, cast:type=fp16;'
like 'whose seconds are those that were given' "$(cat "$tmp/table")" '33333.333 ms forward, 66666.667 ms backward'
# How sure a plan is: measured so and so exactly, other compressors may be as quick, and other ways of the same one.
for exact in 0.01 0.5; do
	sed "s/^reduce = .*/&\nspread = $exact/" "$lab" >"$tmp/spread-$exact.machine"
	"$gradcomp" plan --model "$tmp/small.model" --machine "$tmp/spread-$exact.machine" --compressors none,cast:type=fp16 \
		--collectives ring,tree --schedules single,wfbp >"$tmp/sure-$exact"
done
like 'how exactly a plan is known' "$(cat "$tmp/sure-0.5")" 'as exactly as the machine was measured cast:type=fp16 takes '
is 'what is as quick within that, when little is known' "$(grep '^as quick within what was measured' "$tmp/sure-0.5")" \
	'as quick within what was measured: none; a run decides'
is 'and when more is' "$(grep -c '^as quick within what was measured' "$tmp/sure-0.01")" 0
like 'other ways of the compressor, when little is known' "$(cat "$tmp/sure-0.5")" \
	'of cast:type=fp16 as quick within what was measured: ring with single, tree with wfbp, tree with single'
is 'none when more is' "$(grep -c '^of cast' "$tmp/sure-0.01")" 0
plan --compressors none --half none --collectives ring,rhd,hier >"$tmp/table"
like 'the rest is counted' "$(grep '^of none as quick within 2 %' "$tmp/table")" ' more'
plan --collectives ring,tree --schedules single,wfbp --compressors none --half none --all >"$tmp/table"
is 'combinations that are asked for' "$(grep -c '^none ' "$tmp/table")" 4

plan --json >"$tmp/json"
is 'JSON' "$?" 0
python3 - "$tmp/json" <<'EOF'
import json, sys
d = json.load(open(sys.argv[1]))
t = d["tables"][0]
rows = t["plans"]
assert d["model"]["parameters"] == 8388608 and d["machine"]["name"] == "lab"
assert (t["nodes"], t["ranks_per_node"]) == (2, 2) and t["why"]
assert [r["step_s"] for r in rows] == sorted(r["step_s"] for r in rows)
assert t["best"] == rows[0]
dense = min(r["step_s"] for r in rows if r["compressor"] == d["dense"])
half = min(r["step_s"] for r in rows if r["compressor"] == d["half"])
for r in rows:
    assert abs(r["speedup_dense"] - dense / r["step_s"]) < 1e-9
    assert abs(r["speedup_half"] - half / r["step_s"]) < 1e-9
    assert r["step_s"] >= r["compute_s"] * 0.999 and r["sent_bytes"] > 0 and r["buckets"] >= 1
assert {"wfbp", "single", "fixed", "mgwfbp", "omgs", "auto"} <= {r["schedule"] for r in rows}
assert any(w["why"] == "no curve in the machine file" for w in d["left_out"])
EOF
is 'has all of it, the quickest first' "$?" 0

step () { plan "$@" --compressors none --half none --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["tables"][0]["best"]["step_s"])'; }
check 'a program that waits for layers is no slower' python3 -c "assert $(step --each-layer) <= $(step)"
sed '/^\[network\]/,/^$/d; s/^nodes = 2/nodes = 1/' "$lab" >"$tmp/one.machine"
"$gradcomp" plan --model "$tmp/small.model" --machine "$tmp/one.machine" --nodes 4 >"$tmp/table" 2>"$tmp/err"
is 'more nodes than a machine of one can tell of' "$?" 1
like 'there is no plan' "$(cat "$tmp/err")" 'no combination can be predicted'
like 'and why' "$(cat "$tmp/table")" '[network]'

plan --nodes 2..64 --compressors none,topk >"$tmp/table"
is 'a range of nodes' "$?" 0
is 'is the powers of two in it' "$(sed -n 's/^ *\([0-9][0-9]*\)  .*/\1/p' "$tmp/table" | tr '\n' ' ')" '2 4 8 16 32 64 '
plan --nodes 2..64 --compressors none,topk --json >"$tmp/json"
plot () { PYTHONPATH=$GRADCOMP_SRC/python python3 -m gradcomp.plot "$@" 2>"$tmp/err"; }
PYTHONPATH=$GRADCOMP_SRC/python python3 - "$tmp/json" <<'EOF'
import json, sys
from gradcomp import plot
lines = plot.lines_of(json.load(open(sys.argv[1])))
assert [plot.shown(l[0], [m[0] for m in lines]) for l in lines] in (["none", "cast", "topk"], ["cast", "none", "topk"]), lines
assert [l[1] for l in lines] == [True, True, False], lines
assert all(l[2] == (2, 4, 8, 16, 32, 64) and len(l[3]) == 6 for l in lines), lines
EOF
is 'the lines of a plot of it' "$?" 0
if python3 -c 'import matplotlib' 2>/dev/null; then
	plot "$tmp/json" --output "$tmp/plot.svg"
	is 'a plot' "$? $(cat "$tmp/err")" '0 '
	python3 - "$tmp/plot.svg" <<'EOF'
import sys
from xml.etree import ElementTree
assert ElementTree.parse(sys.argv[1]).getroot().tag == "{http://www.w3.org/2000/svg}svg"
EOF
	is 'is SVG by its name' "$?" 0
else
	plot "$tmp/json" --output "$tmp/plot.svg"
	is 'no plot without matplotlib' "$?" 1
	like 'which is named' "$(cat "$tmp/err")" 'needs matplotlib'
fi
plot "$tmp/table" --output "$tmp/plot.svg"
is 'a table is no plan' "$?" 1
like 'and what is one is said' "$(cat "$tmp/err")" 'is no plan of gradcomp plan --json'
plan --compressors none --dense none --half none --json | PYTHONPATH=$GRADCOMP_SRC/python python3 -c 'import json, sys
from gradcomp import plot
assert len(plot.lines_of(json.load(sys.stdin))) == 1'
is 'a plan of one number of nodes has a point' "$?" 0
sed '/^\[compressor 2\]/,/^$/d; s/^\[compressor 3\]/[compressor 2]/' "$lab" >"$tmp/nohalf.machine"
"$gradcomp" plan --model "$tmp/small.model" --machine "$tmp/nohalf.machine" --json >"$tmp/json"
is 'a machine without a compressor that sends half' "$?" 0
is 'has none to compare with' "$(python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); print(d["half"], d["tables"][0]["best"]["speedup_half"])' "$tmp/json")" 'None None'
plan --nodes 2,3,48 >"$tmp/table"
is 'a list of nodes' "$(sed -n 's/^ *\([0-9][0-9]*\)  .*/\1/p' "$tmp/table" | tr '\n' ' ')" '2 3 48 '
plan --output "$tmp/best.plan" --trace "$tmp/trace.json" >/dev/null
is 'a plan file and a trace' "$?" 0
like 'the plan is of this model' "$(cat "$tmp/best.plan")" 'model = small'
python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); assert d["traceEvents"] if isinstance(d, dict) else d' "$tmp/trace.json"
is 'the trace is JSON with events' "$?" 0
plan --schedules "plan:file=$tmp/best.plan" --compressors "$(sed -n 's/^compressor = //p' "$tmp/best.plan")" \
	--collectives "$(sed -n 's/^collective = //p' "$tmp/best.plan")" --json >"$tmp/json"
is 'the plan file is a schedule' "$?" 0
python3 - "$tmp/json" "$tmp/best.plan" <<'EOF'
import json, re, sys
best = json.load(open(sys.argv[1]))["tables"][0]["best"]
said = float(re.search(r"^predicted = (.*)$", open(sys.argv[2]).read(), re.M).group(1))
assert abs(best["step_s"] - said) <= 1e-6 * said, (best["step_s"], said)
EOF
is 'whose step takes what the file says' "$?" 0
sed 's/1024x1024/1024x1025/' "$tmp/small.model" >"$tmp/other.model"
"$gradcomp" plan --model "$tmp/other.model" --machine "$lab" --schedules "plan:file=$tmp/best.plan" >/dev/null 2>"$tmp/err"
is 'a plan of another model' "$?" 1
like 'is refused by name' "$(cat "$tmp/err")" 'best.plan'

"$gradcomp" plan --list >"$tmp/list"
is 'models by name' "$? $(wc -l <"$tmp/list")" '0 16'
like 'with their parameters' "$(cat "$tmp/list")" 'resnet50            25557032      161'
"$gradcomp" plan --model resnet50 --machine "$lab" --compressors none --half none --schedules wfbp --collectives ring >"$tmp/table"
is 'one of them' "$?" 0
like 'is what it is' "$(cat "$tmp/table")" 'resnet50: 25557032 parameters in 161 tensors'

parallel () { plan --parallel --compressors none "$@"; }
parallel --memory 1G >"$tmp/table"
is 'degrees and stages' "$? $(cat "$tmp/err")" '0 '
like 'with what a step takes' "$(cat "$tmp/table")" 'a step of 128 samples takes '
unlike 'of the compressors that were named' "$(cat "$tmp/table")" 'cast'
like 'and the same degrees everywhere' "$(cat "$tmp/table")" 'with the same degrees in all stages, data '
parallel --memory 1G --json --microbatches 4 --batch 64 >"$tmp/json"
python3 - "$tmp/json" <<'EOF'
import json, sys
d = json.load(open(sys.argv[1]))
for plan in d["plan"], d["uniform"]:
    stages = plan["stages"]
    assert sum(s["data"] * s["tensor"] for s in stages) == 4 and sum(s["layers"] for s in stages) == 8
    assert plan["batch"] == 64 and all(s["memory"] <= 2 ** 30 for s in stages)
    pace = max(3 * s["seconds"] + s["gradient_s"] for s in stages)
    assert abs(sum(s["seconds"] for s in stages) + pace - plan["step_s"]) < 1e-9
assert d["plan"]["step_s"] <= d["uniform"]["step_s"] * 1.001
EOF
is 'as JSON, which adds up' "$?" 0
parallel --memory 1M >/dev/null
is 'too little memory' "$?" 1
like 'names what would do' "$(cat "$tmp/err")" 'the least that would do is'
"$gradcomp" plan --parallel --model resnet50 --machine "$lab" --memory 1G >/dev/null 2>"$tmp/err"
is 'a model without layers' "$?" 1
like 'is named, with what it lacks' "$(cat "$tmp/err")" 'resnet50 has no section [layers]'
parallel --memory 1G --microbatches 3 --batch 64 >/dev/null
is 'micro-batches that do not divide the batch' "$?" 1

m="--model $tmp/small.model" l="--machine $lab"
# shellcheck disable=SC2086
{
wrong 'no model' 'plan needs --model and --machine' $l
wrong 'no machine' 'plan needs --model and --machine' $m
for nodes in 0 -4 8..4 4..4 4,2 2,2 1..2..3 x 4..2000000 '' ',' 4.. ..4 0..8 99999999999999999999; do
	wrong "--nodes '$nodes'" "--nodes is '$nodes'" $m $l --nodes "$nodes"
done
wrong 'no ranks' "--ranks-per-node is '0'" $m $l --ranks-per-node 0
wrong 'too many ranks' "--ranks-per-node is '1025'" $m $l --ranks-per-node 1025
wrong 'no time' "--compute is '0'" $m $l --compute 0
wrong 'a time that is none' "--compute is 'soon'" $m $l --compute soon
wrong 'a plan file of many' 'are of one number of nodes' $m $l --nodes 2..8 --output "$tmp/no.plan"
wrong 'memory without stages' 'go with --parallel' $m $l --memory 1G
wrong 'stages without memory' '--parallel needs --memory' $m $l --parallel
wrong 'memory that is none' "--memory is 'much'" $m $l --parallel --memory much
wrong 'no micro-batches' "--microbatches is '0'" $m $l --parallel --memory 1G --microbatches 0
wrong 'a batch of nothing' "--batch is '0'" $m $l --parallel --memory 1G --batch 0
wrong 'negative state' "--state is '-1'" $m $l --parallel --memory 1G --state -1
wrong 'a plan file of stages' '--parallel goes with neither' $m $l --parallel --memory 1G --output "$tmp/no.plan"
wrong 'an argument' "one argument too many: 'resnet50'" $m $l resnet50
}

# shellcheck disable=SC2086
{
fails 'a model that is not there' "no model 'lenet': there is no such file" --model lenet $l
like 'those that are there are named' "$(cat "$tmp/err")" 'bert-base, bert-large'
fails 'a model file that is not there' "$tmp/none.model" --model "$tmp/none.model" $l
fails 'a machine file that is not there' "there is no machine file $tmp/none; gradcomp probe writes one" $m --machine "$tmp/none"
fails 'a compressor that is not installed' "'nope' is not installed" $m $l --compressors nope
fails 'a list that ends with one' "'nope' is not installed" $m $l --compressors topk:density=0.01,values=f32,nope
fails 'a list of nothing but a comma' "--compressors: '' is not installed" $m $l --compressors ,
fails 'what to compare with, not installed' "--dense: 'nope' is not installed" $m $l --dense nope
fails 'in 16 bits' "--half: 'nope' is not installed" $m $l --half nope
fails 'a collective that is not installed' "'nope' is not installed" $m $l --collectives nope
mkdir -p "$tmp/plugins/collectives" && cp "$GRADCOMP_BUILD/tests/plugins/faulty/nocost.so" "$tmp/plugins/collectives"
GRADCOMP_PLUGIN_PATH=$GRADCOMP_PLUGIN_PATH:$tmp/plugins "$gradcomp" plan $m $l --compressors none --schedules fixed >"$tmp/table" 2>&1
is 'a collective whose costs are no numbers' $? 0
like 'is left out, and the others are not' "$(cat "$tmp/table")" "none over nocost, cast:type=fp16 over nocost: collective 'nocost' tells costs that are no numbers"
like 'the best of the others wins' "$(cat "$tmp/table")" 'times as fast as dense'
echo >"$tmp/plugins/collectives/broken.so"
GRADCOMP_PLUGIN_PATH=$GRADCOMP_PLUGIN_PATH:$tmp/plugins fails 'a collective that cannot be used' "--collectives: $tmp/plugins/collectives/broken.so" $m $l --collectives broken
fails 'a parameter out of range' 'density' $m $l --compressors topk:density=2
fails 'a schedule that is none' 'soonest' $m $l --schedules soonest
fails 'a list of nothing' "--schedules: ',' is no list" $m $l --schedules ,
}
# bad KIND NAME SED: a file with one thing wrong is refused with its name and line
bad () {
	case $1 in model) sed "$3" "$tmp/small.model" >"$tmp/bad" && set -- "$@" --model "$tmp/bad" --machine "$lab" ;;
	*) sed "$3" "$lab" >"$tmp/bad" && set -- "$@" --model "$tmp/small.model" --machine "$tmp/bad" ;; esac
	bad_name="$1: $2"
	shift 3
	fails "$bad_name" "$tmp/bad" "$@"
}
bad model 'a negative time' 's/forward 2e-3/forward -2e-3/'
bad model 'a pass of a year' 's/forward 2e-3/forward 3e7/'
bad model 'no number' 's/forward 2e-3/forward nan/'
bad model 'a tensor twice' 's/^3 = layer3.weight/2 = layer3.weight/'
bad model 'a tensor missing' '/^3 = layer3.weight/d'
bad model 'no tensors' '/^[0-9] = layer/d'
bad model 'layers that leave tensors out' '/^7 = layer7 tensors/d'
bad model 'layers that overlap' 's/tensors 3-3/tensors 2-3/'
bad model 'an unknown word' 's/backward 4e-3/backwards 4e-3/'
bad model 'dimensions beyond counting' 's/1024x1024/99999999999x99999999999/'
bad machine 'a negative byte' 's/byte = 8.4e-9/byte = -1e-9/'
bad machine 'a message of an hour' 's/message = 5e-5/message = 3600/'
bad machine 'no network' '/^\[network\]/,/^$/d'
bad machine 'no nodes' 's/^nodes = 2/nodes = 0/'
bad machine 'a key twice' 's/^nodes = 2/nodes = 2\nnodes = 3/'
bad machine 'an unknown section' 's/^\[node\]/[knot]/'
bad machine 'a curve twice' 's/^spec = topk.*/spec = none/'
# What is left out depends on the build.
for more in '' ' --need 0.95'; do
	# shellcheck disable=SC2086
	"$gradcomp" plan --model resnet50 --machine "$GRADCOMP_SRC/examples/gigabit.machine" --compute 0.4 --collectives ring,rhd $more 2>"$tmp/err" |
		sed '/^Left out:/,$d' >"$tmp/out"
	# shellcheck disable=SC2016 # a pattern
	is "the table of doc/user/planning.md$more" "$(cat "$tmp/out")" \
		"$(sed -n '/^    \$ gradcomp plan --model resnet50 .*gigabit.*rhd'"$more"'$/,/^`/{/^    \$/d;/^`/d;s/^    //p;/^$/p}' "$GRADCOMP_SRC/doc/user/planning.md")"
done
"$gradcomp" plan --parallel --model gpt2-xl --machine "$GRADCOMP_SRC/examples/h100.machine" --nodes 4 --memory 40G --batch 256 --microbatches 16 \
	--compressors none,cast:type=bf16 >"$tmp/out" 2>"$tmp/err"
# shellcheck disable=SC2016 # a pattern
is 'the tables of hybrid plans there' "$(cat "$tmp/out")" \
	"$(sed -n '/^    \$ gradcomp plan --parallel .*bf16$/,/^The/{/^    \$/d;/^The/d;s/^    //p;/^$/p}' "$GRADCOMP_SRC/doc/user/planning.md")"
# Whether compression pays on GPUs: the table of doc/user/gpu.md.
for network in '8 x 400 Gbit/s=2.5e-12' '400 Gbit/s=2e-11' '100 Gbit/s=8e-11'; do
	sed "/^\[network\]/,/^\$/s/^byte = .*/byte = ${network#*=}/" "$GRADCOMP_SRC/examples/h100.machine" >"$tmp/gpu.machine"
	"$gradcomp" plan --model gpt2-xl --machine "$tmp/gpu.machine" --collectives hier >"$tmp/out" 2>"$tmp/err"
	row="| ${network%=*} |"
	for c in none cast block topk powersgd; do
		row="$row $(awk -v c="$c" '$2 == "hier" && $1 ~ "^" c { printf "%.0f", $6; exit }' "$tmp/out") |"
	done
	like "waiting on GPUs, $row" "$(cat "$GRADCOMP_SRC/doc/user/gpu.md")" "$row"
done
done_testing
