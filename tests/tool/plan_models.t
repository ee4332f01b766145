#!/bin/sh
# gradcomp plan of what Hugging Face's programs save. tests/golden/configs has configurations of the classes of
# transformers 4.57.6, and of the parameters that it makes of each (on PyTorch's meta device, "NAME DIMxDIM" a line, in
# the order of named_parameters()) how many there are and the first 16 digits of their SHA-256.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
export GRADCOMP_PLUGIN_PATH="$GRADCOMP_BUILD/lib/gradcomp" GRADCOMP_MODELS="$GRADCOMP_SRC/etc/models"
unset GRADCOMP GRADCOMP_CONF
machine=$GRADCOMP_SRC/examples/gigabit.machine configs=$GRADCOMP_SRC/tests/golden/configs
grep -q HAVE_JANSSON "$GRADCOMP_BUILD/gradcomp_config.h" || skip_all 'built without jansson'

# What the file is read as: "NAME DIMS" a line.
parameters () { "$gradcomp" plan --model "$1" --save "$tmp/saved" 2>"$tmp/err" && names; }
names () { awk '/^\[/ { on = $0 == "[tensors]"; next } on && NF { print $3, $4 }' "$tmp/saved"; }
# refused WHAT TEXT MODEL [OPTION...]: it ends with 1 and says TEXT, and predicts nothing.
refused () {
	what=$1 text=$2 model=$3
	shift 3
	"$gradcomp" plan --machine "$machine" --compressors none --model "$model" "$@" >"$tmp/out" 2>"$tmp/err"
	is "$what: exit status" $? 1
	like "$what: message" "$(cat "$tmp/err")" "$text"
	is "$what: nothing is printed" "$(cat "$tmp/out")" ''
}

while read -r name tensors digest; do
	parameters "$configs/$name.json" >"$tmp/names"
	is "$name: names and shapes" "$(wc -l <"$tmp/names") $(sha256sum <"$tmp/names" | cut -c1-16)" "$tensors $digest"
done <"$configs/expected"

# ---- a prediction of 70,553,706,496 parameters

collectives=ring
# Where it was built.
[ ! -e "$GRADCOMP_BUILD/lib/gradcomp/collectives/nccl.so" ] || collectives=ring,nccl
"$gradcomp" plan --model "$configs/llama-70b.json" --machine "$machine" --nodes 16 --collectives $collectives --json >"$tmp/json" 2>"$tmp/err"
is 'seventy thousand million parameters: exit status' $? 0
like '... are all counted' "$(cat "$tmp/json")" '"parameters": 70553706496'
for compressor in none topk powersgd block; do
	like "... $compressor is predicted" "$(cat "$tmp/json")" "\"$compressor"
done
"$gradcomp" plan --model "$configs/gpt2.json" --parallel --batch 32 --memory 80G --machine "$machine" --nodes 4 >"$tmp/out" 2>&1
like 'layers follow from a configuration, too' "$(cat "$tmp/out")" 'stage'

# ---- safetensors: names in the order of their bytes, as their writers have them

header () { # of the lines "NAME DIMS" on stdin
	sort | awk 'BEGIN { printf "{\"__metadata__\":{\"format\":\"pt\"}" }
		{ gsub("x", ",", $2); if ($2 == "scalar") $2 = ""
		  printf ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[0,0]}", $1, $2 } END { printf "}" }'
}
safetensors () { # FILE
	header >"$tmp/header"
	n=$(wc -c <"$tmp/header")
	# shellcheck disable=SC2059 # the format is the bytes
	printf "$(printf '\\%03o\\%03o\\%03o\\000\\000\\000\\000\\000' $((n % 256)) $((n / 256 % 256)) $((n / 65536)))" >"$1"
	cat "$tmp/header" >>"$1"
}
for name in llama-7b gpt2 bert; do
	parameters "$configs/$name.json" >"$tmp/names"
	mkdir -p "$tmp/$name"
	safetensors "$tmp/$name/model.safetensors" <"$tmp/names"
	parameters "$tmp/$name" >"$tmp/read"
	is "$name: a folder's safetensors have the same parameters" "$(sort "$tmp/read" | sha256sum)" "$(sort "$tmp/names" | sha256sum)"
	is "$name: layers come in order" "$(sed -n 's/[^0-9]*\.\([0-9]*\)\..*/\1/p' "$tmp/read" | uniq)" "$(sed -n 's/[^0-9]*\.\([0-9]*\)\..*/\1/p' "$tmp/names" | uniq)"
	is "$name: embeddings come first" "$(head -n 1 "$tmp/read" | grep -c 'embed\|wpe')" 1
done
# Two files by an index.
mkdir "$tmp/two"
parameters "$configs/llama-7b.json" >"$tmp/names"
head -n 100 "$tmp/names" | safetensors "$tmp/two/a.safetensors"
tail -n +101 "$tmp/names" | safetensors "$tmp/two/b.safetensors"
awk 'BEGIN { printf "{\"weight_map\":{" } { printf "%s\"%s\":\"%s.safetensors\"", (NR > 1 ? "," : ""), $1, (NR <= 100 ? "a" : "b") } END { print "}}" }' \
	"$tmp/names" >"$tmp/two/model.safetensors.index.json"
parameters "$tmp/two" >"$tmp/read"
is 'an index names the files' "$(sort "$tmp/read" | sha256sum)" "$(sort "$tmp/names" | sha256sum)"

# ---- experts and convolutions: what a file does not tell is asked for

mkdir "$tmp/moe" "$tmp/conv"
printf 'model.layers.0.mlp.experts.%d.w.weight 64x64\n' 0 1 2 3 4 5 6 7 | safetensors "$tmp/moe/model.safetensors"
refused 'experts without a configuration' '--compute SECONDS' "$tmp/moe"
echo '{"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}' >"$tmp/moe/config.json"
"$gradcomp" plan --model "$tmp/moe" --save "$tmp/saved"
is 'a token takes its share of experts' "$(awk '$4 == "64x64" { s += $6 } END { printf "%.4g", s * 62.4e12 }' "$tmp/saved")" \
	"$(awk 'BEGIN { printf "%.4g", 8 * 64 * 64 * 2 * 4096 * 2 / 8 }')"
printf 'conv%d.weight 64x64x3x3\n' 1 2 | safetensors "$tmp/conv/model.safetensors"
refused 'convolutions' '--compute SECONDS' "$tmp/conv"
"$gradcomp" plan --model "$tmp/conv" --compute 0.1 --machine "$machine" --compressors none >"$tmp/out" 2>&1
is '... with --compute they are planned' $? 0

# ---- files that are none

refused 'no such family' "model_type 'nope' has no description" "$(echo '{"model_type": "nope"}' >"$tmp/x.json" && echo "$tmp/x.json")"
like '... and lists those there are' "$(cat "$tmp/err")" 'deepseek_v3, '
bad () { printf '%s' "$3" >"$tmp/bad.json" && refused "$1" "$2" "$tmp/bad.json"; }
bad 'a family that is a path' "model_type '../../x'" '{"model_type": "../../x"}'
bad 'no type' 'no model_type' '{"layers": 3}'
bad 'an array' 'no object' '[1]'
bad 'half a file' 'bad.json:1' '{"model_type": "llama"'
bad 'a key is missing' "has no 'num_hidden_layers'" '{"model_type": "llama", "hidden_size": 64}'
bad 'a size is text' 'no whole number' '{"model_type": "gpt2", "n_embd": "64", "n_layer": 2, "n_head": 2, "vocab_size": 100, "n_positions": 10}'
bad 'a size is negative' 'no whole number' '{"model_type": "gpt2", "n_embd": -64, "n_layer": 2, "n_head": 2, "vocab_size": 100, "n_positions": 10}'
bad 'a size is too large' 'no whole number' '{"model_type": "gpt2", "n_embd": 1e30, "n_layer": 2, "n_head": 2, "vocab_size": 100, "n_positions": 10}'
bad 'too many layers' 'tensors' '{"model_type": "gpt2", "n_embd": 64, "n_layer": 1000000000, "n_head": 2, "vocab_size": 100, "n_positions": 10}'
bad 'heads do not divide' 'cannot be divided' '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 7, "intermediate_size": 8, "vocab_size": 9}'
bad 'no heads' "is 0" '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 0, "intermediate_size": 8, "vocab_size": 9}'
mkdir "$tmp/none"
refused 'an empty folder' 'has neither' "$tmp/none"
printf '<!DOCTYPE html>' >"$tmp/none/model.safetensors"
refused 'a page for safetensors' 'no safetensors file' "$tmp/none"
: >"$tmp/none/model.safetensors"
refused 'an empty file' 'no safetensors file' "$tmp/none"
head -c 300 "$tmp/gpt2/model.safetensors" >"$tmp/none/model.safetensors"
refused 'a file that was cut off' 'cut off' "$tmp/none"
rm "$tmp/none/model.safetensors"
echo '{"weight_map": {"a": "../two/a.safetensors"}}' >"$tmp/none/model.safetensors.index.json"
refused 'an index that leads elsewhere' 'no name of a file beside it' "$tmp/none"
echo '{"weight_map": {"a": "gone.safetensors"}}' >"$tmp/none/model.safetensors.index.json"
refused 'an index of a file that is gone' 'gone.safetensors' "$tmp/none"
"$gradcomp" plan --model "$configs/gpt2.json" --machine "$machine" --tokens 0 >"$tmp/out" 2>&1
is 'no tokens: exit status' $? 2
"$gradcomp" plan --model resnet50 --machine "$machine" --tokens 5 >"$tmp/out" 2>&1
is 'tokens of a model file: exit status' $? 2
done_testing
