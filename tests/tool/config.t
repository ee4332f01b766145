#!/bin/sh
# gradcomp config, and the documents that tell of settings: gradcomp.conf(5) and
# the sample file.
# shellcheck source=tests/tool/tool.sh
. "$GRADCOMP_SRC/tests/tool/tool.sh"

printf '[gradcomp]\ncompressor = topk\n[transport]\nstreams = 3\n' >"$tmp/conf"
line () { printf '%s\n' "$said" | sed -n "s/^  $1  *= //p" | tr -s ' '; }
check "config" env GRADCOMP_COLLECTIVE=tree GRADCOMP_OPTIONS=collective "$gradcomp" config
is "from the file" "$(line transport.streams)" "3 ($tmp/conf:4)"
is "from an option" "$(line gradcomp.collective)" "tree (option --gradcomp-collective)"
is "from the environment" "$(line gradcomp.plugin_path)" "$fixtures (environment GRADCOMP_PLUGIN_PATH)"
is "default" "$(line reducer.bucket_bytes)" "25M (default)"
if grep -q '^HAVE_MUNGE = yes' "$GRADCOMP_BUILD/config.mk"; then
	auto='munge in a Slurm step with PMIx (no job without munged'"'s answer), elsewhere pmix"
else
	auto='pmix: this gradcomp was built without munge'
fi
is "what secret=auto is" "$(printf '%s\n' "$said" | grep '^security.secret = auto is ')" "security.secret = auto is $auto"

"$gradcomp" config --json >"$tmp/config.json"
if command -v python3 >/dev/null; then
	check "config --json" python3 -c '
import json, sys
d = json.load(open(sys.argv[1], encoding="utf-8"))
s = {r["name"]: r for r in d["settings"]}
assert d["file"] == sys.argv[2]
assert s["gradcomp.compressor"]["value"] == "topk" and s["gradcomp.compressor"]["origin"] == sys.argv[2] + ":2"
assert all(r["help"] for r in d["settings"])' "$tmp/config.json" "$tmp/conf"
else
	skip "config --json" "python3 is not installed"
fi

printf '[stage]\nevict = 90,60 # ours\n' >"$tmp/conf"
check "config --check" env GRADCOMP_PLUGIN_PATH="$GRADCOMP_BUILD/lib/gradcomp" "$gradcomp" config --check
is "says nothing when all is well" "$said" ""
refuse "config --check: a variable that means nothing" env GRADCOMP_TRANSPORT_STRAEMS=2 "$gradcomp" config --check
like "is named" "$said" "environment GRADCOMP_TRANSPORT_STRAEMS: gradcomp knows no such variable (did you mean 'GRADCOMP_TRANSPORT_STREAMS'?)"
printf '[stage]\nevict = 50,60\n' >"$tmp/conf"
refuse "config --check: marks the wrong way round" "$gradcomp" config --check
like "are named" "$said" "$tmp/conf:2: stage.evict: '50,60' is not two percentages"

# Everything that can be set is in the manual, with its default, and in the sample.
: >"$tmp/conf"
unset GRADCOMP_PLUGIN_PATH
manual=$GRADCOMP_SRC/doc/man/gradcomp.conf.5
sample=$GRADCOMP_SRC/etc/gradcomp.conf.in
"$gradcomp" config | sed -n 's/^  \([a-z]*\)\.\([a-z_]*\)  *= *\(.*\) (default)$/\1 \2 \3/p' | sed 's/ *$//' >"$tmp/settings"
documented=0
while read -r section key value; do
	text=$(sed -n "/^\.Ss Section $section\$/,/^\.El\$/p" "$manual" | grep "^\.It Cm $key ")
	case $key in
	plugin_path) want="Pq default Pa PREFIX/lib/gradcomp" in_sample="#plugin_path = @libdir@/gradcomp" ;;
	cache_dir) want="Pq default Pa $value" in_sample="#$key = $value" ;;
	*) want="Pq default ${value:+Cm }${value:-empty}" in_sample="#$key =${value:+ }$value" ;;
	esac
	is "manual: $section.$key" "$text" ".It Cm $key $want"
	is "sample: $section.$key" "$(sed -n "/^\[$section\]\$/,/^\[/p" "$sample" | grep -x -c "$in_sample")" 1
	documented=$((documented + 1))
done <"$tmp/settings"
is "every setting was compared" "$documented" "$("$gradcomp" config | grep -c '^  ')"
is "the manual has no others" "$(sed -n '/^\.Sh SETTINGS/,/^\.Sh ENV/p' "$manual" | grep -c '^\.It Cm')" "$documented"

sed 's|@libdir@|/usr/lib|' "$sample" >"$tmp/conf"
check "the sample is accepted" "$gradcomp" config
is "and changes nothing" "$(printf '%s\n' "$said" | grep -c "$tmp/conf:")" 0
sed -e 's|@libdir@|/usr/lib|' -e 's/^#\([a-z_]* =\)/\1/' "$sample" >"$tmp/conf"
check "with every line in force it is accepted too" "$gradcomp" config
is "and sets everything" "$(printf '%s\n' "$said" | grep -c "($tmp/conf:")" "$documented"
done_testing
