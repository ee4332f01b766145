#!/bin/bash
# gradcomp bench collectives under srun, four ranks on two nodes: every collective gives
# right results; bytes are those of the formulas; and a code that is forwarded is made
# once where one at every hop is made three times.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"

nodes=2
real_jobs
bench () {
	check "$1" timeout 60 "${bed[@]}" run -u alice srun --mpi=pmix -N2 -n4 -D "$tmp/run" --gradcomp=none \
		"$tmp/bin/gradcomp" bench collectives --iters 3 --seconds 0.01 --json rows "${@:2}"
}
# of COLLECTIVE PRIMITIVE BYTES FIELD: what the rows say
of () {
	python3 - "$@" <<- 'PYTHON'
		import json, sys
		spec, primitive, size, field = sys.argv[1:]
		print(*[round(r[field], 3) for r in json.load(open("run/rows"))
		        if (r["collective"], r["primitive"], r["bytes"]) == (spec, primitive, int(size))])
	PYTHON
}
bench 'all collectives and codes' --bytes 4K,100,4004 --compressors block:bits=8,lossless
is 'on two nodes' "$(of ring all-reduce 4096 nodes)" 2
is 'of four ranks' "$(of tree all-reduce 4096 ranks)" 4

bench 'a code once, or at every hop' --collectives ring:small=0,ring:mode=hop,small=0 --bytes 1M --compressors block:bits=8
is 'all-reduce: 2 (P-1)/P of the bytes' "$(of ring:small=0 all-reduce 1048576 sent_bytes)" $((2 * 3 * 1048576 / 4))
is 'reduce-scatter: (P-1)/P' "$(of ring:small=0 reduce-scatter 1048576 sent_bytes)" $((3 * 1048576 / 4))
is 'all-gather: (P-1)/P' "$(of ring:small=0 all-gather 1048576 sent_bytes)" $((3 * 1048576 / 4))
is 'a forwarded code is made once' "$(of ring:small=0 coded-all-gather 1048576 blocks_coded)" 1.0
is 'one for each hop P-1 times' "$(of ring:mode=hop,small=0 coded-all-gather 1048576 blocks_coded)" 3.0
is 'and in P-1 calls' "$(of ring:mode=hop,small=0 coded-all-gather 1048576 code_calls)" 3
is 'a sum is coded at every hop either way' "$(of ring:small=0 coded-reduce-scatter 1048576 blocks_coded)" 3.0
# 8 bits a number, a step of 4 bytes for each 256; heads of 8 bytes.
sent=$(of ring:small=0 coded-all-gather 1048576 sent_bytes)
messages=$(of ring:small=0 coded-all-gather 1048576 messages)
heads=$((messages / 2))
is 'and a quarter of the bytes and the steps are sent' $((sent - heads * 8)) $((3 * (65536 + 4 * 256)))
all_idle 'no node was drained'
done_testing
