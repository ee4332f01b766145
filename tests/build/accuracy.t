#!/bin/sh
# bench/accuracy: what a page of results keeps when some of its rows are run again. Nothing is trained.
# shellcheck source=tests/support/tap.sh
# shellcheck disable=SC2016 # backticks of Markdown
. "$GRADCOMP_SRC/tests/support/tap.sh"
[ -x /usr/bin/python3 ] || skip_all "no /usr/bin/python3"
accuracy () {
	"$GRADCOMP_SRC/bench/accuracy" --prefix "$tmp" --seeds 2 --json "$tmp/results" "$@" >"$tmp/out" 2>"$tmp/err"
}

# row SPEC MOMENTUM LOSS...: a run for each seed.
row () {
	spec=$1 momentum=$2 seed=0
	shift 2
	for loss; do
		printf '{"task": "digits", "spec": "%s", "momentum": %s, "seed": %d, "loss": %s, ' "$spec" "$momentum" $seed "$loss"
		printf '"accuracy": 0.9, "wire_ratio": 8, "wire_bytes": 500, "relative_error": null}\n'
		seed=$((seed + 1))
	done
}
echo "[$({ row none 0.9 0.5 0.6 0.7 0.8; row natural 0.9 0.6 0.8; row demo:k=4 null 0.6 0.7; } | paste -sd,)]" >"$tmp/results"
cat >"$tmp/page" <<'END'
# Accuracy

## digits

| compressor | setting | loss |
|---|---|---|
| `natural` | Horvath 2019: 9 bits | old |
| `zfp:rate=8` | 8 bits | kept |

Written by hand.

## What the papers vary

### demo

By hand, too.

## The end
END
accuracy --task digits --only natural --markdown "$tmp/page"
is "a row that has been run: status" $? 0
is "... is not run again" "$(cat "$tmp/err")" ""
like "... is replaced" "$(cat "$tmp/page")" '| `natural` | Horvath 2019: 9 bits | 0.7000 | +0.4 | 0.9000 | 8.0 | - | 2 |'
like "another stays" "$(cat "$tmp/page")" '| `zfp:rate=8` | 8 bits | kept |'
like "one that is new says that it has not been run" "$(cat "$tmp/page")" '| `lossless` | no loss | not run | | | | | |'
is "text stays" "$(grep -c -e 'Written by hand.' -e 'By hand, too.' -e '## The end' "$tmp/page")" 3

accuracy --papers demo --only demo:k=4 --markdown "$tmp/page"
is "what a paper varies can be asked for" $? 0
section=$(sed -n '/^### demo/,/^## The end/p' "$tmp/page")
like "its table goes below its heading" "$section" \
	'| `demo:k=4` | 4 of 64 x 64 | 8.0 | 0.6500 ± 0.0707 | +0.1000 ± 0.0000 | 0.9000 ± 0.0000 | 2 |'
is "... after the text" "$(echo "$section" | sed -n 3p)" "By hand, too."
cp "$tmp/page" "$tmp/before"
accuracy --papers demo --only demo:k=4 --markdown "$tmp/page"
is "once more changes nothing" "$(cmp "$tmp/before" "$tmp/page" 2>&1)" ""
accuracy --only demo:k=4
is "it is no row of the other tables: status" $? 2
like "... which says so" "$(cat "$tmp/err")" "--only demo:k=4: there is none"
done_testing
