#!/bin/sh
# gradcomp plugin-check: options, text, JSON, exit status. What it finds is in
# tests/contract/faulty.t.
# shellcheck source=tests/tool/tool.sh
. "$GRADCOMP_SRC/tests/tool/tool.sh"
none=$GRADCOMP_BUILD/lib/gradcomp/compressors/none.so
topk=$GRADCOMP_BUILD/lib/gradcomp/compressors/topk.so
faulty=$fixtures/faulty/loses_mass.so

check "a plugin that is right" "$gradcomp" plugin-check --seed 7 "$none"
like "says which, and what to repeat it with" "$said" "none 1.0, MIT, ABI 3
none; ranks 1..9, seed 7"
like "a line a rule" "$said" "ok    1 conservation  off by at most"
like "what does not apply" "$said" "skip 17 unbiased      trait UNBIASED is not there"
like "a summary" "$said" " rules kept, 0 broken, 0 not reached, "
check "parameters and ranks" "$gradcomp" plugin-check --param density=0.3 --param layerwise=yes --ranks 2..3 "$topk"
like "are taken" "$said" "topk:density=0.3,"
like "are taken" "$said" "ranks 2..3"
check "--ranks N" "$gradcomp" plugin-check --ranks=2 "$none"
refuse "a plugin that breaks a rule" "$gradcomp" plugin-check "$faulty"
like "names it, with what was seen" "$said" "FAIL  1 conservation  "
like "and what it says" "$said" "rule: what goes in comes out or stays in the error memory"
refuse "a value outside of the table" "$gradcomp" plugin-check --param density=2 "$topk"
like "says what is possible" "$said" "density=FLOAT (1e-09..1"
refuse "a file that is none" "$gradcomp" plugin-check "$tmp/nowhere.so"
like "says so" "$said" "nowhere.so"
refuse "a fixture of a newer ABI" "$gradcomp" plugin-check "$fixtures/compressors/newer_abi.so"
like "prints both numbers" "$said" "abi_version: found 4, expected at most 3"
check "a collective that makes no instances: its descriptor" "$gradcomp" plugin-check "$fixtures/collectives/whole.so"
like "and that it tells planners nothing" "$said" "there is no predict()"
like "and why nothing ran" "$said" "create() refuses: a fixture does not run"
refuse "a collective that deadlocks" "$gradcomp" plugin-check --ranks 2 "$fixtures/faulty/star_waits.so"
like "says who waits for whom" "$said" "all ranks wait: rank "
refuse "a plugin that ends the process with 0" "$gradcomp" plugin-check --ranks 2 "$fixtures/faulty/exits.so"
like "says where" "$said" "the process ended with status 0 in decode()"
like "what was not checked" "$said" "miss  1 conservation  not reached"
refuse "a plugin that crashes everywhere" "$gradcomp" plugin-check --ranks 2 "$fixtures/faulty/crashes.so"
is "hears of it once" "$(printf '%s\n' "$said" | grep -c "which is no buffer")" 1
like "and where to look" "$said" "look at: "
refuse "a collective whose costs are no numbers" "$gradcomp" plugin-check "$fixtures/faulty/nocost.so"
like "names the field and what it holds" "$said" "predict() of primitive 0x1, 4 bytes, 1 ranks on 1 nodes: bytes[1] is nan; it must be a number from 0 on"
refuse "a collective whose calls take no message" "$gradcomp" plugin-check "$fixtures/faulty/silent.so"
like "says so" "$said" "2 ranks on 1 nodes: several ranks need messages"
check "a compressor" "$gradcomp" plugin-check --ranks 2 "$none"
like "does not predict" "$said" "skip 21 predict       of collectives"
for so in "$GRADCOMP_BUILD"/lib/gradcomp/collectives/*.so; do
	check "${so##*/}: its primitives" "$gradcomp" plugin-check --ranks 1..4 "$so"
	like "${so##*/}: what it tells planners" "$said" "ok   21 predict"
	like "${so##*/}: over links" "$said" "ok   25 links"
done

if command -v python3 >/dev/null; then
	"$gradcomp" plugin-check --json --seed 9 "$faulty" >"$tmp/out.json"
	is "--json has the same exit status" $? 1
	check "--json" python3 - "$tmp/out.json" <<'END'
import json, sys
d = json.load(open(sys.argv[1], encoding="utf-8"))
assert d["name"] == "loses_mass" and d["seed"] == 9 and not d["passed"] and d["ranks_max"] == 9
r = {x["name"]: x for x in d["rules"]}
assert r["conservation"]["result"] == "fail" and r["conservation"]["number"] == 1 and r["conservation"]["failures"] > 0
assert "went in" in r["conservation"]["seen"] and r["agreement"]["result"] == "ok" and r["unbiased"]["result"] == "skip"
END
fi

for wrong in "" "--ranks 0 x.so" "--ranks 3..2 x.so" "--ranks 1..99 x.so" "--seed x x.so" "--limit 0 x.so" "--param x x.so" \
	"a.so b.so" "--what x.so"; do
	# shellcheck disable=SC2086
	"$gradcomp" plugin-check $wrong >"$tmp/out" 2>&1
	is "usage error: plugin-check $wrong" $? 2
done
done_testing
