#!/bin/sh
# Good plugins, each broken in one thing (mutants.py), do not pass gradcomp plugin-check; wrapped and not broken they do.
# MUTANTS: how many (10, of which half a day; tests/long/mutants.t: 300). MUTANTS_SEED: repeats a run. MUTANTS_KEEP: a folder for those that pass.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
command -v python3 >/dev/null || skip_all "no python3"
seed=${MUTANTS_SEED:-2}
count=${MUTANTS:-10}

# Builds and checks one. Only what hangs is waited for.
cat >"$tmp/one" <<'END'
#!/bin/sh
cd "$2" || exit 1
${CC:-cc} -std=gnu11 -O1 -w -fPIC -shared -fvisibility=hidden -ffp-contract=off -I"$GRADCOMP_SRC/include" -I"$GRADCOMP_SRC" \
	-o "$1.so" "$1.c" "$GRADCOMP_BUILD/lib/plugins.a" "$GRADCOMP_BUILD/lib/libgradcomp-sdk.a" -lm >"$1.said" 2>&1 || { echo unbuilt >"$1.status"; exit; }
limit=40
grep -q '^/\* time:' "$1.c" && limit=4
"$GRADCOMP_BUILD/bin/gradcomp" plugin-check --ranks 1..3 --limit $limit --seed "$3" "$2/$1.so" >"$1.said" 2>&1
echo $? >"$1.status"
END
chmod +x "$tmp/one"

python3 "$GRADCOMP_SRC/tests/contract/mutants.py" "$seed" "$count" "$tmp" >"$tmp/all"
is "mutants.py" $? 0
echo "# PART=$(part)"
i=0
while IFS= read -r line; do
	i=$((i + 1))
	! { [ -n "${MUTANTS-}" ] || in_part $i 2; } || printf '%s\n' "$line"
done <"$tmp/all" >"$tmp/list"
cut -f1 "$tmp/list" | xargs -P "$(nproc)" -I NAME "$tmp/one" NAME "$tmp" "$seed"
tab=$(printf '\t')
while IFS=$tab read -r name class what; do
	if [ "$class" = none ]; then
		is "$what: all is well" "$(cat "$tmp/$name.status") $(grep -c '^FAIL' "$tmp/$name.said")" "0 0"
		grep -A2 '^FAIL' "$tmp/$name.said" | sed 's/^/# /'
		continue
	fi
	is "seed $seed, $name: $class: $what" "$(cat "$tmp/$name.status")" 1
	if [ "$(cat "$tmp/$name.status")" != 1 ]; then
		head -3 "$tmp/$name.said" | sed 's/^/# /'
		[ -n "${MUTANTS_KEEP-}" ] && cp "$tmp/$name.c" "$MUTANTS_KEEP"
	else
		grep '^FAIL' "$tmp/$name.said" | head -1 | sed 's/^/# /'
	fi
done <"$tmp/list"
done_testing
