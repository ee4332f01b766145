#!/bin/sh
# gradcomp list and help-option: what can be asked for.
# shellcheck source=tests/tool/tool.sh
. "$GRADCOMP_SRC/tests/tool/tool.sh"

check "list" "$gradcomp" list
like "a plugin" "$said" "  sample       a fixture (version 1.2, Apache-2.0)"
like "a parameter with type, range, default and help" "$said" "rank=INT (1..64, default 4)         columns that are kept"
like "a size" "$said" "block=SIZE (4K..1G, default 256K)"
like "a choice" "$said" "type=fp16|bf16 (default fp16)"
like "a plugin that cannot be used, with the reason" "$said" "  newer_abi    cannot be used: $fixtures/compressors/newer_abi.so: field abi_version: found 4"
like "collectives come second" "$said" "
collectives
  both "

like "what is no plugin comes last" "$said" "
chosen while the job runs, in place of a compressor
  auto "
like "with its parameters" "$said" "max_error=FLOAT (0.001..100, default 0.995)"
check "list auto" "$gradcomp" list auto
is "prints one" "$(printf '%s\n' "$said" | grep -c '^  [a-z]')" 1

check "list NAME" "$gradcomp" list gatherer
is "prints one" "$(printf '%s\n' "$said" | wc -l)" 2

# Those of this build: which come first, and that the page has the same.
installed=$GRADCOMP_BUILD/lib/gradcomp
said=$(GRADCOMP_PLUGIN_PATH=$installed "$gradcomp" list)
# names TITLE: those under it
names() {
	printf '%s\n' "$said" | awk -v title="$1" '/^[^ ]/ { here = $0 == title } here && /^  [a-z]/ { printf "%s ", $1 }'
}
is "a user chooses among these" "$(names "compressors to choose among")" "block blocktopk cast fp8 powersgd topk "
is "they stand first" "$(printf '%s\n' "$said" | sed -n 1p)" "compressors to choose among"
like "none is one of the others" " $(names "other compressors")" " none "
classic=$(names "classic compressors, to compare with their papers")
is "classic ones come last" "$(printf '%s\n' "$classic" | sed 's/zfp //')" \
	"gtopk lags lqsgd mstopk natural onebit randomk signsgd terngrad threshold "
# shellcheck disable=SC2016 # backquotes of Markdown
is "compressors.md calls the same classic" \
	"$(sed -n 's/^| `\([a-z0-9]*\)`, classic |.*/\1/p' "$GRADCOMP_SRC/doc/user/compressors.md" | sort | tr '\n' ' ')" \
	"gtopk lags lqsgd mstopk natural onebit randomk signsgd terngrad threshold zfp "
said=$(GRADCOMP_PLUGIN_PATH=$installed "$gradcomp" list onebit)
like "list NAME says of which group it is" "$said" "classic compressors, to compare with their papers
  onebit "
refuse "list of a name that is not there" "$gradcomp" list nowhere
like "says so" "$said" "gradcomp: no plugin is called 'nowhere'"
refuse "list of a name with a slip" "$gradcomp" list gahterer
like "says what is near" "$said" "'gahterer' (did you mean 'gatherer'?)"
refuse "list of a plugin that cannot be used" "$gradcomp" list twin
like "says why" "$said" "parameter 'rank' stands in the table twice"

if command -v python3 >/dev/null; then
	"$gradcomp" list --json >"$tmp/list.json"
	check "list --json is JSON, and says what the table does" python3 - "$tmp/list.json" <<'END'
import json, sys
d = json.load(open(sys.argv[1], encoding="utf-8"))
assert d["abi"] == 3 and d["gradcomp"]
c = {p["name"]: p for p in d["compressors"]}
assert [p["name"] for p in d["collectives"]] == ["both", "promise", "sumonly", "whole"]
assert all(p["group"] is None for p in d["compressors"]) and "group" not in d["collectives"][0]
assert not c["newer_abi"]["usable"] and "found 4, expected at most 3" in c["newer_abi"]["reason"]
assert [q["name"] for q in d["auto"]["parameters"]] == ["max_error", "allow", "deny", "candidates", "margin", "window", "interval"]
s = c["sample"]
assert s["usable"] and s["path"].endswith("/compressors/sample.so") and s["version"] == "1.2"
p = {q["name"]: q for q in s["parameters"]}
assert p["rank"] == dict(name="rank", type="int", default="4", min=1, max=64, choices=[], help="columns that are kept")
assert p["type"]["choices"] == ["fp16", "bf16"] and p["type"]["min"] is None
assert p["block"]["help"] == 'bytes of a "block"' and p["block"]["max"] == 2**30
assert p["layers"]["default"] == "" and p["warm"]["type"] == "bool"
END
	"$gradcomp" list --json both >"$tmp/one.json"
	check "list --json NAME" python3 -c '
import json, sys
d = json.load(open(sys.argv[1]))
assert d["compressors"] == [] and [p["name"] for p in d["collectives"]] == ["both"]' "$tmp/one.json"
else
	skip "list --json" "python3 is not installed"
fi

check "an empty plugin path" env GRADCOMP_PLUGIN_PATH="$tmp/plugins" "$gradcomp" list
like "says that there is nothing" "$said" "compressors
  none is installed"
echo '[gradcomp' >"$tmp/conf"
refuse "list under a wrong file" "$gradcomp" list
like "names file and line" "$said" "gradcomp: $tmp/conf:1: '[gradcomp' is not a section"
is "list --json under a wrong file prints no half of a document" "$("$gradcomp" list --json 2>/dev/null)" ""
printf '[transport]\ntimeout = 45\n' >"$tmp/conf"

check "help-option" "$gradcomp" help-option
like "explains a SPEC" "$said" "A SPEC is NAME[:key=value[,key=value...]]"
like "lists plugins" "$said" "density=FLOAT (0..1, default 0.01)"
like "names the file in force" "$said" "settings ($tmp/conf)"
like "lists settings and origins" "$said" "transport.timeout       = 45                   ($tmp/conf:2)"

for wrong in "list a b" "list --jsno" "help-option x"; do
	# shellcheck disable=SC2086
	"$gradcomp" $wrong >"$tmp/out" 2>&1
	is "usage error: $wrong" $? 2
done
done_testing
