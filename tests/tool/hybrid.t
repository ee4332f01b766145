#!/bin/sh
# The example of a job with several groups, alone; it asks for no Slurm.
# shellcheck source=tests/support/tap.sh disable=SC2154
. "$GRADCOMP_SRC/tests/support/tap.sh"

hybrid=$GRADCOMP_BUILD/examples/c/hybrid
[ -x "$hybrid" ] || skip_all "the examples are not built"
: >"$tmp/conf"
export GRADCOMP_CONF="$tmp/conf" GRADCOMP_PLUGIN_PATH="$GRADCOMP_BUILD/lib/gradcomp"
GRADCOMP_LOG=error "$hybrid" >"$tmp/out" 2>"$tmp/err"
is 'alone it ends well' $? 0
is 'nothing is lost of layers' "$(sed -n 's/ [0-9]* buckets,//; 1p' "$tmp/out")" \
	'layers of ranks like 0: 1 ranks, 40 steps, averages off by 0'
is 'nor of the embedding' "$(sed -n 2p "$tmp/out")" \
	'embedding of ranks like 0: 1 ranks, 40 steps, 1 buckets, averages off by 0'
"$hybrid" 2 >/dev/null 2>"$tmp/err"
is 'stages that ranks cannot be divided by' "$? $(cat "$tmp/err")" \
	'2 usage: hybrid STAGES, of which the number of ranks is a multiple'
done_testing
