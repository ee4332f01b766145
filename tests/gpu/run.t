#!/bin/sh
# tests/gpu/run with sections that stand for real ones: what they say is in its files as it
# comes, one that hangs is ended at its limit with all it started, and the exit status is right.
# shellcheck source=tests/support/tap.sh disable=SC2154
. "$GRADCOMP_SRC/tests/support/tap.sh"

command -v "${PYTHON:=python3}" >/dev/null || skip_all "there is no Python"
bundle=$tmp/bundle out=$tmp/out
mkdir -p "$bundle/sections" "$bundle/python/gradcomp/lib" "$tmp/tmp" "$tmp/open"
echo plugin >"$bundle/python/gradcomp/lib/plugin.so"
# section NAME: its script is read from stdin.
section () {
	{ printf '#!/bin/sh\ntmp=%s\n' "$tmp"; cat; } >"$bundle/sections/$1"
	chmod 755 "$bundle/sections/$1"
}
# A command of its own: what is in front of it is in its environment.
gpu_run () {
	TMPDIR=$tmp/tmp exec "$PYTHON" -B "$GRADCOMP_SRC/tests/gpu/run" --bundle "$bundle" --out "$out" "$@" >"$tmp/said" 2>&1
}
run () {
	(gpu_run "$@")
	status=$?
	summary=$(cat "$out/summary" 2>/dev/null)
}
gone () { ! kill -0 "$1" 2>/dev/null; }

section facts <<'END'
echo 1..1
echo ok 1 - facts
END
section operators <<'END'
echo ok 1 - before
until [ -e "$tmp/go" ]; do sleep 0.05; done
stat -c '# %a %n' . python/gradcomp/lib/plugin.so sections/operators
echo "# settings: ${GRADCOMP_CONF}, ${GRADCOMP-none}"
echo "figure: add 2^27 = 4000.5 GB/s; 0.91 of the copy's rate; goal >= 0.85"
echo "figure: a step, topk:density=0.01 = 3 ms; 1.070 of DDP's own; goal <= 1.03"
echo "figure: alone = 7 us"
echo ok 2 - after
echo 1..2
END
section reducer <<'END'
echo ok 1 - begins
trap '' TERM
sleep 1000 &
echo $! >"$tmp/left"
wait
END
section collective <<'END'
echo ok 1 - one
echo not ok 2 - two
exit 1
END
section faults <<'END'
kill -SEGV $$
END
section torch <<'END'
echo '1..0 # SKIP there is no PyTorch'
exit 77
END
section rates <<'END'
echo 'figure: of no use'
END

# As they are when somebody else's umask, or a copy, made them.
chmod -R g+w,o+w "$bundle"
(
	export GRADCOMP=topk
	gpu_run --only operators=60
) &
running=$!
check "a section's first lines are in the log while it runs" wait_for 20 grep -q 'operators .* ok 1 - before' "$out/log"
touch "$tmp/go"
wait $running
is "what is right ends with 0" $? 0
is "the copy that runs is nobody else's to write, with its programs and its plugins" \
	"$(sed -n 's/^operators [0-9.]* # \([0-7]* [^ ]*\)$/\1/p' "$out/log" | tr '\n' ' ')" \
	"700 . 644 python/gradcomp/lib/plugin.so 755 sections/operators "
like "settings are its own" "$(grep 'settings:' "$out/log")" "$tmp/tmp/gradcomp-gpu-"
like "and nobody's environment" "$(grep 'settings:' "$out/log")" "gradcomp.conf, none"
is "and it is gone" "$(ls "$tmp/tmp")" ""
summary=$(cat "$out/summary")
like "a goal that is met" "$summary" "met    add 2^27: 4000.5 GB/s  0.91 of the copy's rate  (goal >= 0.85)"
like "one that is missed is said, and no failure" "$summary" "MISSED a step, topk:density=0.01: 3 ms"
is "figures are in their file" "$(tail -n 1 "$out/figures.tsv")" "$(printf 'operators\talone\t7\tus\t\t\t\t')"

run --only "reducer=$(scaled 1)" --only collective --only faults --only torch
is "what is wrong ends with 1" $status 1
like "a section that hangs is ended at its limit" "$summary" "wrong: cut at its limit of"
check "with what it started" wait_for 10 gone "$(cat "$tmp/left")"
like "the next one runs; what it gets wrong is counted" "$(echo "$summary" | grep '^collective')" "wrong: 1 results, exit status 1"
like "a signal is named" "$(echo "$summary" | grep '^faults')" "SIGSEGV"
like "what cannot run says why" "$(echo "$summary" | grep '^torch')" "skipped: there is no PyTorch"
run --only torch
is "and that alone is no failure" $status 0
section collective <<'END'
echo '1..0 # SKIP its module is not loaded'
END
run --only collective
is "but what needs only the device has to run" $status 1
like "and says why it did not" "$summary" "skipped where there is a device: its module is not loaded"
run --only rates
is "a figure that cannot be read is a failure" $status 1
run --only reducer --only collective --limit "$(scaled 1)"
is "a limit for all of them" $status 1
like "is kept" "$summary" "wrong: cut at its limit of"
like "and what is left out is said" "$(echo "$summary" | grep '^collective')" "not run: no time was left"

# Told to end, as at the limit of whoever lent the machine.
rm -f "$tmp/left"
(gpu_run --only reducer --only collective) &
running=$!
wait_for 20 test -s "$tmp/left"
kill -TERM $running
wait $running
is "told to end it has failed" $? 1
check "its section is gone" wait_for 10 gone "$(cat "$tmp/left")"
like "and the summary is there" "$(cat "$out/summary")" "collective"
is "with nothing left behind" "$(ls "$tmp/tmp")" ""

section facts <<'END'
echo '1..0 # SKIP no CUDA device: none is visible'
exit 77
END
run
is "without a device it ends with 77" $status 77
like "and says so" "$(cat "$tmp/said")" "1..0 # SKIP no CUDA device: none is visible"

section facts <<'END'
echo 1..1
echo ok 1 - facts
END
section torch <<'END'
echo "# NCCL says $NCCL_DEBUG"
echo ok 1 - torch
echo 1..1
END
section rates <<'END'
echo ok 1 - rates
echo 1..1
END
run --call 1
is "a call of half an hour's three" $status 0
is "has its sections, what users want to know first" "$(echo "$summary" | sed -n 's/ .* right$//p' | tr '\n' ' ')" "facts rates torch "
like "NCCL's warnings are in the log" "$(cat "$out/log")" "NCCL says WARN"
is "all calls take at most 28 minutes, each at most ten" "$("$PYTHON" -B - "$GRADCOMP_SRC/tests/gpu/run" <<'END'
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.SourceFileLoader("gpu_run", sys.argv[1])
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_run", loader))
loader.exec_module(run)
calls = [run.SECTIONS["facts"] + sum(c.values()) for c in run.CALLS.values()]
print(max(calls) <= 600 and sum(calls) <= 28 * 60)
END
)" True

for wrong in "--call 4" "--call 1 --only torch" "--only nothing" "--only reducer=soon" "--only sanitizer" "--limit 0" "--bundle $tmp/open"; do
	# shellcheck disable=SC2086
	run $wrong
	is "$wrong is refused" $status 1
done
like "with what would be right" "$(cat "$tmp/said")" "make one with tests/gpu/bundle"
done_testing
