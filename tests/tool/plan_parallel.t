#!/bin/sh
# gradcomp plan --parallel: ways of sharing the work against arithmetic, and plans as training programs take them.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
export GRADCOMP_PLUGIN_PATH="$GRADCOMP_BUILD/lib/gradcomp" GRADCOMP_MODELS="$GRADCOMP_SRC/etc/models"
unset GRADCOMP GRADCOMP_CONF

# Messages that take next to nothing.
cat >"$tmp/lab.machine" <<'EOF'
[machine]
name = lab
nodes = 1
ranks_per_node = 4
memory = 1e-14
reduce = 1e-14
beside_application = 1
beside_exchange = 1

[node]
message = 0
byte = 1e-14

[compressor 1]
spec = none
encode = 0 0
decode = 0 0
EOF
# LAYERS FILE: as many of 3 ms for eight samples, between embeddings and a head that take no time
model () {
	{
		printf '[model]\nname = even\nbatch = 8\n\n[tensors]\n0 = in 64x1024 forward 0 backward 0\n'
		for i in $(seq "$1"); do echo "$i = w$i 1024x1024 forward 1e-3 backward 2e-3"; done
		printf '%d = out 1024x64 forward 0 backward 0\n\n[layers]\n0 = embeddings tensors 0-0 output 8 kept 8 8 reduces 1\n' $(($1 + 1))
		for i in $(seq "$1"); do echo "$i = layer$i tensors $i-$i output 8 kept 8 16 reduces 2"; done
		echo "$(($1 + 1)) = head tensors $(($1 + 1))-$(($1 + 1)) output 8 kept 8 8 reduces 1"
	} >"$2"
}
model 8 "$tmp/even.model"
model 7 "$tmp/odd.model"
plan () { "$gradcomp" plan --parallel --model "$tmp/${model:-even}.model" --machine "$tmp/${machine:-lab}.machine" --memory 1G --compressors none "$@" 2>"$tmp/err"; }

plan --microbatches 4 --batch 32 --json >"$tmp/json"
is 'a plan' "$? $(cat "$tmp/err")" '0 '
# 24 ms for eight samples: four micro-batches on a quarter of the samples, or of the matrices, each; or through four stages of
# 6 ms, where (4 - 1) of 4 + 4 - 1 turns are waited for.
python3 - "$tmp/json" <<'EOF'
import json, sys
d = json.load(open(sys.argv[1]))
near = lambda a, b: abs(a - b) <= 2e-3 * abs(b) + 1e-6
for shape, step, bubble, utilisation in (("data", 24e-3, 0, 1), ("tensor", 24e-3, 0, 1), ("pipeline", 42e-3, 3 / 7, 4 / 7)):
    p = d[shape]
    assert near(p["step_s"], step) and near(p["bubble"], bubble) and near(p["utilisation"], utilisation), (shape, p)
assert {(s["data"], s["tensor"]) for s in d["data"]["stages"]} == {(4, 1)}
assert {(s["data"], s["tensor"]) for s in d["tensor"]["stages"]} == {(1, 4)}
assert [(s["data"], s["tensor"]) for s in d["pipeline"]["stages"]] == [(1, 1)] * 4
assert near(d["uniform"]["step_s"], 24e-3) and d["plan"]["step_s"] <= d["uniform"]["step_s"] * 1.001
EOF
is 'samples, matrices or layers alone: as counted by hand' "$?" 0
plan --microbatches 4 --batch 32 >"$tmp/table"
like 'as a table' "$(cat "$tmp/table")" 'the work is shared by'
like 'with a row for layers alone' "$(grep '^pipeline 4 ' "$tmp/table")" ' 42.9 %       57.1 %'
plan --microbatches 4 --batch 8 >"$tmp/table"
like 'which says why there is none' "$(grep '^data 4 ' "$tmp/table")" ' no stages of 10 layers and 2 samples a micro-batch take all'

# ---- for training programs

plan --microbatches 4 --batch 8 --emit megatron >"$tmp/megatron"
is 'arguments for megatron' "$?" 0
python3 - "$tmp/megatron" 8 4 4 <<'EOF'
import argparse, sys
words, batch, micro, ranks = open(sys.argv[1]).read().split(), *map(int, sys.argv[2:])
p = argparse.ArgumentParser()
for name in "tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size", "global-batch-size":
    p.add_argument("--" + name, type=int, required=True)
a = p.parse_args(words)
data = ranks // (a.tensor_model_parallel_size * a.pipeline_model_parallel_size)
assert a.global_batch_size == batch and a.micro_batch_size * data * micro == batch, a
EOF
is '... whose numbers are those of the job' "$?" 0
# Seven layers in two stages, on nodes between which all but activations takes long.
{ sed 's/^nodes = 1/nodes = 2/; s/^ranks_per_node = 4/ranks_per_node = 1/; /^\[node\]/,/^$/d' "$tmp/lab.machine" && printf '\n[network]\nmessage = 1e-4\nbyte = 1e-6\n'; } >"$tmp/slow.machine"
model=odd machine=slow
plan --microbatches 8 --batch 8 --emit megatron >"$tmp/odd"
like 'layers that stages do not share equally' "$(cat "$tmp/odd")" '--decoder-first-pipeline-num-layers '
is '... are all there' "$(sed 's/.*--decoder-first-pipeline-num-layers \([0-9]*\) --decoder-last-pipeline-num-layers \([0-9]*\)/\1 + \2/' "$tmp/odd" | xargs expr)" 7
like '... and people are told where the cut is' "$(cat "$tmp/err")" 'gradcomp: stage 1 has layer'
model="" machine=""
plan --microbatches 4 --batch 32 --emit deepspeed >"$tmp/json"
is 'a configuration for deepspeed' "$(python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
print(d["train_batch_size"] == d["train_micro_batch_size_per_gpu"] * d["gradient_accumulation_steps"] * (4 // d["tensor_parallel"]["autotp_size"] // d["pipeline"]["stages"]))' "$tmp/json")" True
plan --microbatches 4 --batch 32 --emit torchtitan >"$tmp/titan"
is 'arguments for torchtitan: all ranks are there' "$(tr ' ' '\n' <"$tmp/titan" | sed -n 's/.*_degree=//p' | paste -sd'*' | sed 's/\*/ \\* /g' | xargs -n 7 expr)" 4
like '... and the batch' "$(cat "$tmp/titan")" '--training.global_batch_size=32'

wrong () {
	text=$1
	shift
	plan "$@" >"$tmp/out"
	is "$*: wrong usage" "$?" 2
	like "$*: said" "$(cat "$tmp/err")" "$text"
}
wrong "--emit is 'nemo'; it can be torchtitan, megatron, deepspeed" --emit nemo
wrong "--emit is ''; it can be" --emit ''
wrong "--emit is 'torchtitan@9'; names are those of torchtitan " --emit torchtitan@9
wrong '--emit and --json print different things' --emit megatron --json
"$gradcomp" plan --model "$tmp/even.model" --machine "$tmp/lab.machine" --emit megatron 2>"$tmp/err"
is 'without --parallel: wrong usage' "$?" 2
like '... said' "$(cat "$tmp/err")" 'go with --parallel'
plan --microbatches 3 --batch 32 --emit megatron >"$tmp/out"
is 'no plan, no arguments' "$? $(cat "$tmp/out")" '1 '
done_testing
