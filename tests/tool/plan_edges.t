#!/bin/sh
# gradcomp plan at its edges: files that are none or not whole, numbers of nodes that cannot be
# predicted, models that are too large for some compressors, output that cannot be written.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
gradcomp=$GRADCOMP_BUILD/bin/gradcomp
export GRADCOMP_PLUGIN_PATH="$GRADCOMP_BUILD/lib/gradcomp" GRADCOMP_MODELS="$GRADCOMP_SRC/etc/models"
unset GRADCOMP GRADCOMP_CONF
lab=$tmp/lab.machine small=$tmp/small.model
plan () { "$gradcomp" plan --model "$small" --machine "$lab" "$@"; }
# shellcheck disable=SC2317 # called by refuse
on () { "$gradcomp" plan --model "$small" --machine "$@"; }
# shellcheck disable=SC2317 # and by check
of () { "$gradcomp" plan --machine "$lab" --compressors none --half none --collectives ring --schedules wfbp --model "$@"; }
said_of () { said=$("$@" 2>&1); }
entries () { find "$1" -mindepth 1 | wc -l; }

cat >"$lab" <<'EOF2'
[machine]
name = lab
nodes = 2
ranks_per_node = 2
memory = 2e-10
reduce = 3e-10

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
spec = topk:density=0.01
encode = 1e-4 2e-9
decode = 1e-5 1e-9
gathered = 1e-9

[compressor 3]
spec = dgc:density=0.01
encode = 1e-4 2e-9
decode = 1e-5 1e-9
EOF2
{
	printf '[model]\nname = small\nbatch = 32\n\n[tensors]\n'
	for i in 0 1 2 3; do
		echo "$i = layer$i.weight 1024x1024 forward 2e-3 backward 4e-3"
	done
	printf '\n[layers]\n'
	for i in 0 1 2 3; do
		echo "$i = layer$i tensors $i-$i output 4096 kept 4096 8192 reduces 1"
	done
} >"$small"

# What is read.
mkfifo "$tmp/fifo"
for file in "$tmp/fifo" "$tmp" /dev/zero /dev/null; do
	what=' is not a regular file'
	[ ! -d "$file" ] || what=': the folder has neither'
	refuse "$file as a model" timeout 20 "$gradcomp" plan --model "$file" --machine "$lab"
	like 'is no file' "$said" "$file$what"
	refuse "$file as a machine" timeout 20 "$gradcomp" plan --model "$small" --machine "$file"
	like 'is no file' "$said" "$file is not a regular file"
done
head -c 10000000 /dev/zero | tr '\0' a >"$tmp/long"
refuse 'a line of ten megabytes' of "$tmp/long"
like 'is too long' "$said" "$tmp/long:1: the line is too long"
{ cat "$small"; printf '\0'; } >"$tmp/nul"
refuse 'a NUL behind it all' of "$tmp/nul"
like 'has its line' "$said" "nul:16: there is a control character (0x00)"
sed 's/layer1\.weight/lay\rer1/' "$small" >"$tmp/return"
refuse 'a carriage return inside a name' of "$tmp/return"
like 'has its line too' "$said" 'return:7: there is a control character (0x0d)'
sed 's/$/\r/' "$small" >"$tmp/crlf"
check 'lines that end as in DOS' of "$tmp/crlf"
{ printf '\357\273\277' && cat "$small"; } >"$tmp/bom"
check 'a byte order mark' of "$tmp/bom"
head -c 250 "$small" >"$tmp/cut"
refuse 'a model that is cut off' of "$tmp/cut"
for kind in compressor collective; do
	awk -v kind=$kind 'BEGIN {
		for (i = 1; i <= 1001; i++) {
			printf "\n[%s %d]\nspec = x%d\n", kind, i, i
			print kind == "compressor" ? "encode = 0 0\ndecode = 0 0" : "allreduce = 0 0"
		}
	}' >"$tmp/sections"
	sed '/^\[compressor 1\]/,$d' "$lab" | cat - "$tmp/sections" >"$tmp/many"
	refuse "more than any machine has: ${kind}s" on "$tmp/many"
	like 'are counted' "$said" "there are more than 1000 ${kind}s"
done
mkdir "$tmp/mod[e]ls"
cp "$small" "$tmp/mod[e]ls"
check 'models in a folder whose name looks like a pattern' env GRADCOMP_MODELS="$tmp/mod[e]ls" "$gradcomp" plan --list
like 'are found' "$said" 'small'

# What is asked.
sed '/^\[node\]/,/^$/d; s/ranks_per_node = 2/ranks_per_node = 1/' "$lab" >"$tmp/network"
said_of on "$tmp/network" --nodes 1,4 --ranks-per-node 2
is 'nodes of which some can be predicted' "$?" 0
like 'the others are named' "$said" '      1  nothing can be predicted'
sed '/^\[network\]/,/^$/d; s/^nodes = 2/nodes = 1/' "$lab" >"$tmp/one"
said_of on "$tmp/one"
is 'one node' "$?" 0
unlike 'tells nothing of more nodes' "$said" 'nothing else would win'
said_of plan --compressors none --half none --nodes 3
like 'other numbers of nodes are powers of two' "$said" 'nothing else would win on any power of two up to 16384 nodes'
sed 's/^1 = layer1.weight 1024x1024/1 = layer1.weight 100000x100000/' "$small" >"$tmp/large"
said_of "$gradcomp" plan --model "$tmp/large" --machine "$lab"
is 'a tensor that a compressor cannot count' "$?" 0
like 'leaves that one out' "$said" "has more numbers than compressor 'topk' counts in a bucket"
like 'and no other' "$said" 'dense wins: none'
sed 's/forward .* backward .*/forward 0 backward 0/' "$small" >"$tmp/still"
sed 's/^nodes = 2/nodes = 1/; s/^ranks_per_node = 2/ranks_per_node = 1/' "$lab" >"$tmp/alone"
said_of "$gradcomp" plan --dense topk:density=0.01 --model "$tmp/still" --machine "$tmp/alone"
unlike 'a step without seconds is not infinitely many times as fast' "$said" ' inf'
said_of "$gradcomp" plan --parallel --memory 1G --model "$tmp/still" --machine "$tmp/alone"
unlike 'nor has it infinitely many samples' "$said" ' inf'
sed 's/^batch = 32/batch = 9007199254740992/' "$small" >"$tmp/batch"
refuse 'more samples than can be counted' "$gradcomp" plan --parallel --memory 1G --model "$tmp/batch" --machine "$lab" --nodes 2048
like 'are refused' "$said" '9007199254740992 samples of model small on each of 2048 nodes of 2 ranks'
sed 's/\(layer[01].weight\) 1024x1024/\1 0x1024/' "$small" >"$tmp/half"
check 'stages of a model whose first half has no parameters' "$gradcomp" plan --parallel --memory 1G --model "$tmp/half" --machine "$lab"
sed 's/^0 = layer0 tensors/0 = "\\<a\&b>\xff tensors/' "$small" >"$tmp/odd"
"$gradcomp" plan --parallel --memory 1G --json --model "$tmp/odd" --machine "$lab" >"$tmp/json"
is 'odd names in JSON' "$(python3 -c 'import json, sys; print(ascii(json.load(open(sys.argv[1]))["plan"]["stages"][0]["first_name"]))' "$tmp/json")" \
	"'\"\\\\<a&b>\\ufffd'"
sent () {
	plan --compressors "$1" --half none --dense "$1" --collectives hier --schedules wfbp --json |
		python3 -c 'import json, sys; print(json.load(sys.stdin)["tables"][0]["best"]["sent_bytes"])'
}
check 'a matrix stays one where ranks hold parts of it' \
	python3 -c "assert $(sent dgc:density=0.01) < 1.01 * $(sent topk:density=0.01)"

# What is written: whole, or not at all.
mkdir "$tmp/out"
ln -s "$lab" "$tmp/link"
for option in --output --trace; do
	for file in "$tmp/fifo" "$tmp/link" "$tmp"; do
		refuse "$option $file" timeout 20 "$gradcomp" plan --model "$small" --machine "$lab" $option "$file"
		like 'is no file' "$said" 'something of that name that is no file'
	done
	echo before >"$tmp/out/file"
	# A disk that is full, as far as a process can tell.
	(
		ulimit -f 0
		plan $option "$tmp/out/file" 2>&1 | cat >/dev/null
	) 2>/dev/null
	is "$option: what cannot be written leaves what was there" "$(cat "$tmp/out/file") $(entries "$tmp/out")" 'before 1'
	check "$option: what can takes its place" plan $option "$tmp/out/file"
	is 'and nothing else' "$(grep -c before "$tmp/out/file") $(entries "$tmp/out")" '0 1'
done
check 'the pipe is still one' test -p "$tmp/fifo"
check 'and the link' test -L "$tmp/link"
done_testing
