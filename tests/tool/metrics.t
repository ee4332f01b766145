#!/bin/bash
# gradcomp metrics: what jobs and stagers leave is summed up once, and what others put there does no harm.
# shellcheck source=tests/tool/tool.sh
. "$GRADCOMP_SRC/tests/tool/tool.sh"
export GRADCOMP_PLUGIN_PATH=$GRADCOMP_BUILD/lib/gradcomp

refuse "without the setting" "$gradcomp" metrics
like "says which" "$said" "report.metrics is not set in gradcomp.conf"

mkdir "$tmp/left" "$tmp/collector" "$tmp/data"
chmod 1733 "$tmp/left"
echo value > "$tmp/data/file"
printf '[report]\nmetrics = %s\n[stage]\ncache_dir = %s\n' "$tmp/left" "$tmp/cache" > "$tmp/conf"
files () { find "$tmp/left" -name '*.usage' | wc -l; }

check "a job" env GRADCOMP=topk:density=0.5 "$gradcomp" bench reduce --tensors 64x64 --iters 3
is "leaves a file" "$(files)" 1
check "a stager" "$gradcomp" stage --quiet "$tmp/data"
check "one that finds the copy" "$gradcomp" stage --quiet "$tmp/data"
check "one that only looks" "$gradcomp" stage --quiet --dry-run "$tmp/data"
is "the first two leave a file each" "$(files)" 3
is "and nothing else is there" "$(find "$tmp/left" -mindepth 1 | wc -l)" 3

out=$tmp/collector/gradcomp.prom
value () { sed -n "s/^$1 //p" "$out"; }
check "they are summed up" "$gradcomp" metrics --output "$out"
is "and gone" "$(files)" 0
is "jobs" "$(value 'gradcomp_jobs_total{compressor="topk"}')" 1
is "jobs that failed" "$(value 'gradcomp_jobs_failed_total{compressor="topk"}')" 0
steps=$(value 'gradcomp_steps_total{compressor="topk"}')
check "steps: $steps" test "$steps" -ge 3
is "requests to the cache" "$(value gradcomp_cache_requests_total)" 2
is "its hits" "$(value gradcomp_cache_hits_total)" 1
is "what was read" "$(value gradcomp_cache_read_bytes_total)" 6
if [ "$(id -u)" = 0 ]; then
	is "copies in the caches" "$(value gradcomp_cache_copies)" 1
	check "their bytes" test "$(value gradcomp_cache_bytes)" -ge 6
else
	is "the caches of all users are left to root" "$(value gradcomp_cache_copies)" ""
fi
is "node_exporter can read it" "$(stat -c %a "$out")" 644
is "every line is of the format" "$(grep -cvE \
	'^(# .*|[a-z_]+(\{compressor="[a-z0-9_-]+"\})? [0-9]+)$' "$out")" 0
python=
for candidate in python3 /usr/bin/python3; do
	"$candidate" -c 'import prometheus_client' 2> /dev/null && python=$candidate
done
if [ -n "$python" ]; then
	check "prometheus_client reads it" "$python" -c '
import sys
from prometheus_client.parser import text_string_to_metric_families as parse
found = {f.name: f for f in parse(open(sys.argv[1]).read())}
assert found["gradcomp_jobs"].type == "counter" and found["gradcomp_jobs"].samples[0].value == 1' "$out"
else
	skip "prometheus_client reads it" "python3-prometheus-client is not installed"
fi

# named NUMBER: a file by its right name; leave NUMBER LINE: with this in it.
named () { printf '%s/left/%032x.usage' "$tmp" "$1"; }
leave () { printf '%s\n' "$2" > "$(named "$1")"; }
leave 1 'gradcomp-usage 1 topk 1 10 1000 400 0 0 0'
leave 2 'gradcomp-usage 1 mine 0 5 100 300 0 0 0 1 2'
check "more is added" "$gradcomp" metrics --output "$out"
is "to what there was" "$(value 'gradcomp_steps_total{compressor="topk"}')" $((steps + 10))
is "failed jobs" "$(value 'gradcomp_jobs_failed_total{compressor="topk"}')" 1
is "a name of a user's own is no label" "$(value 'gradcomp_steps_total{compressor="other"}')" 5
is "a job in which one rank held up the others" "$(value 'gradcomp_held_up_jobs_total{kind="late data"}')" 1
is "and what that cost" "$(value 'gradcomp_held_up_steps_total{kind="late data"}')" 2
is "what is sent beyond dense saves nothing" "$(value 'gradcomp_saved_bytes_total{compressor="other"}')" 0
grep -v '^# counted' "$out" > "$tmp/before"
check "nothing new" "$gradcomp" metrics --output "$out"
is "changes nothing" "$(grep -v '^# counted' "$out")" "$(cat "$tmp/before")"

# Killed between its file and the removal: the list in the file says what was counted.
leave 3 'gradcomp-usage 1 topk 0 7 10 10 0 0 0'
cp "$(named 3)" "$tmp/kept"
check "a file" "$gradcomp" metrics --output "$out"
cp "$tmp/kept" "$(named 3)"
check "that is there again" "$gradcomp" metrics --output "$out"
is "is not counted again" "$(value 'gradcomp_steps_total{compressor="topk"}')" $((steps + 17))
is "and goes" "$(files)" 0

# What a user who means harm puts there.
leave 10 'gradcomp-usage 1 topk"} 1e9 0 0 0 0 0 0 0'
leave 11 'gradcomp-usage 1 topk 0 99999999999999999999 0 0 0 0 0'
leave 12 'gradcomp-usage 1 topk 0 -5 0 0 0 0 0'
leave 13 'gradcomp-usage 1 topk 0 5 5 5 0 1 0'
printf 'gradcomp-usage 1 topk 0 5 5 5 0 0 0\nnode_load1 99\n' > "$(named 14)"
head -c 100000 /dev/zero > "$(named 15)"
ln -s /etc/passwd "$(named 16)"
mkfifo "$(named 17)"
mkdir "$(named 18)"
ln "$tmp/kept" "$(named 19)"
: > "$(named 20)"
leave 21 'gradcomp-usage 1 topk 0 5 5 5 0 0 0 99 1'
leave 22 'gradcomp-usage 1 topk 0 5 5 5 0 0 0 1'
: > "$tmp/left/node.prom"
check "does not stop it" timeout 60 "$gradcomp" metrics --output "$out"
is "is counted as refused" "$(value gradcomp_metrics_refused_total)" 12
is "and counts for nothing" "$(value 'gradcomp_steps_total{compressor="topk"}')" $((steps + 17))
unlike "none of it is in the file" "$(cat "$out")" node_load1
is "it is removed, but for a folder and what has another name" "$(find "$tmp/left" -mindepth 1 | wc -l)" 2
check "what a link led to is there" test -s /etc/passwd -a -s "$tmp/kept"
check "the folder is in nobody's way" "$gradcomp" metrics --output "$out"
is "and is not counted" "$(value gradcomp_metrics_refused_total)" 12

echo 'node_load1 0.5' > "$tmp/collector/other.prom"
refuse "somebody else's file" "$gradcomp" metrics --output "$tmp/collector/other.prom"
is "is left alone" "$(cat "$tmp/collector/other.prom")" "node_load1 0.5"
rm -r "$tmp/left"
refuse "no directory" "$gradcomp" metrics
like "is named" "$said" "cannot open the directory $tmp/left: No such file or directory"
check "a job goes on without it" env GRADCOMP=none "$gradcomp" bench reduce --tensors 8 --iters 1
like "and says so" "$said" "file of report.metrics $tmp/left/"
done_testing
