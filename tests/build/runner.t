#!/bin/sh
# tests/run itself: every way in which a test can go wrong is counted.
# shellcheck source=tests/support/tap.sh disable=SC2317
. "$GRADCOMP_SRC/tests/support/tap.sh"

chmod o+x "$tmp"
mkdir -p "$tmp/src/tests/unit" "$tmp/src/tests/cluster" "$tmp/src/tests/distro"
script () {
	{
		echo '#!/bin/sh'
		cat
	} >"$tmp/src/tests/$1"
	chmod +x "$tmp/src/tests/$1"
}
unset WHOLE
runner=$GRADCOMP_SRC/tests/run
limit=60 # s
run () { env GRADCOMP_SRC="$tmp/src" GRADCOMP_BUILD="$tmp/build" "$runner" -t "$limit" "$@"; }
last () { printf '%s\n' "$said" | tail -n 1; }

script unit/good.t <<'END'
echo "ok 1 - one"
echo "ok 2 - two # SKIP no device"
echo "1..2"
END
script unit/skip.t <<'END'
echo "1..0 # SKIP not root"
END
script unit/bad.t <<'END'
echo "not ok 1 - wrong answer"
echo "# got 41"
echo "to be seen" >&2
echo "1..1"
exit 1
END
script unit/crash.t <<'END'
echo "ok 1 - before"
kill -SEGV $$
END
script unit/status.t <<'END'
echo "ok 1 - x"
echo "1..1"
exit 3
END
script unit/short.t <<'END'
echo "ok 1 - x"
echo "1..2"
END
script unit/silent.t <<'END'
exit 0
END
script unit/late.t <<'END'
trap 'echo stopped >"$GRADCOMP_BUILD/late"; exit 1' TERM
echo "ok 1 - x"
echo >"$GRADCOMP_BUILD/began"
sleep 60 &
wait
END
script unit/long.t <<'END'
# time limit: 60 s
sleep 3
echo "ok 1 - x"
echo "1..1"
END
script unit/child.t <<'END'
sleep 60 &
echo "ok 1 - x"
echo "1..1"
END
script cluster/env.t <<'END'
echo "ok 1 - ${GRADCOMP-unset} ${GRADCOMP_REPORT-unset} ${MAKEFLAGS-unset} $(umask)"
echo "1..1"
END

check "passed and skipped" run tests/unit/good.t tests/unit/skip.t
is "... counted" "$(last)" "1 passed, 0 failed, 2 skipped"
like "... with the reason" "$said" "skipped: no device (two)"
like "... of a whole file too" "$said" "skipped: not root"

# failing NAME WORDS: NAME fails, is counted once, and the report has WORDS
failing () {
	refuse "$1" run "tests/unit/$1.t"
	like "... is counted" "$(last)" " passed, 1 failed, 0 skipped"
	like "... and explained" "$said" "$2"
}
failing bad "not ok 1 - wrong answer"
like "... with its comments" "$said" "# got 41"
like "... and what it wrote to stderr" "$said" "to be seen"
failing status "exit status 3"
failing child "left behind: sleep"
limit=3
failing late "took more than 3 s"
is "... after it could clean up" "$(cat "$tmp/build/late")" stopped
limit=1
check "one that asks for more time has it" run tests/unit/long.t
limit=60
refuse "crash" run tests/unit/crash.t
like "... by a signal" "$said" "ended by signal 11"
refuse "fewer tests than planned" run tests/unit/short.t
refuse "no output" run tests/unit/silent.t
refuse "a test that is not there" run tests/unit/none.t
refuse "one bad among good ones" run -j 2 tests/unit/good.t tests/unit/bad.t
like "... is named at the end" "$said" "failed: tests/unit/bad.t"
script unit/unsteady.t <<'END'
[ -e "$GRADCOMP_BUILD/tried" ] && echo "ok 1 - x" || echo "not ok 1 - x"
touch "$GRADCOMP_BUILD/tried"
echo "1..1"
END
refuse "one that would pass the second time" run tests/unit/good.t tests/unit/unsteady.t
is "... has failed" "$(last)" "1 passed, 1 failed, 1 skipped"
is "... and has run once" "$(printf '%s\n' "$said" | grep -c '^tests/unit/unsteady.t ')" 1

# ---- sums of what was tried

printf 'echo "# tried: 20 inputs"\necho "# tried: 5 faults"\necho "ok 1 - x"\necho "1..1"\n' | script unit/tries.t
printf 'echo "# tried: 22 inputs"\necho "ok 1 - tried: 7 of them"\necho "1..1"\n' | script unit/tries2.t
check "what two tests tried" run tests/unit/tries.t tests/unit/tries2.t
like "... is summed" "$said" "
tried: 5 faults, 42 inputs
"

# ---- the slowest

for i in 1 2 3 4 5 6 7 8 9 10 11; do
	printf 'echo "ok 1 - x"\necho "1..1"\n' | script "unit/quick$i.t"
done
script unit/slow.t <<'END'
i=0
while [ $i -lt 400000 ]; do i=$((i + 1)); done
sleep 1
echo "ok 1 - x"
echo "1..1"
END
# shellcheck disable=SC2046
check "twelve tests" run $(cd "$tmp/src" && echo tests/unit/quick*.t) tests/unit/slow.t
slowest=$(printf '%s\n' "$said" | sed -n '/^slowest:/,$p' | grep ' s of processor time  tests/')
is "the ten slowest are shown" "$(printf '%s\n' "$slowest" | wc -l)" 10
like "... the slowest first" "$(printf '%s\n' "$slowest" | head -n 1)" tests/unit/slow.t
like "... and what all of them took" "$said" "
12 tests took "
like "... how idle the machine was" "$said" " % of it"
durations=$tmp/build/tests/log/durations
is "each test's time is kept" "$(awk '{ print $4 }' "$durations" | sort)" "$(cd "$tmp/src" && printf '%s\n' tests/unit/quick*.t tests/unit/slow.t | sort)"
# shellcheck disable=SC2016 # awk's fields
check "... with when it began, and what the processors did" awk '$4 ~ /slow/ { exit !($1 ~ /^[0-9.]+$/ && $2 >= 1 && $3 > 0) }' "$durations"

# ---- what a folder may take

unlike "without a budget none is over it" "$said" budget
printf '# FOLDER SECONDS\n\nunit  0\ncluster 100\n' >"$tmp/src/tests/budget"
check "a folder that takes more than its budget does not fail" run tests/unit/slow.t tests/cluster/env.t
like "... but is named" "$said" "over its budget: tests/unit took "
like "... with its budget" "$said" ", and tests/budget gives it 0 s"
unlike "... and one that keeps to it is not" "$said" "tests/cluster took"
unlike "... nor are all folders together" "$said" "budget of all folders"
WHOLE=yes check "the same in check-long" run tests/unit/slow.t
unlike "... is not held to it" "$said" budget
echo 'cluster 100' >"$tmp/src/tests/budget"
check "a folder that the budget does not name" run tests/unit/slow.t
like "... is over it" "$said" "over its budget: tests/unit took "
printf 'unit 0\n' >"$tmp/src/tests/budget"
check "all folders take more" run tests/unit/slow.t
like "... and it is said" "$said" "over the budget of all folders: "
echo 'unit many' >"$tmp/src/tests/budget"
refuse "a budget that is no number" run tests/unit/good.t
like "... is told" "$said" "tests/budget, line 1: "
rm "$tmp/src/tests/budget"

# ---- what runs beside what

mkdir "$tmp/at"
for name in cluster/a cluster/b distro/e distro/f unit/c unit/d; do
	script "$name.t" <<'END'
# Who else runs is in a folder, for a second at least. Where so many are expected, whoever sees them all writes them
# down for the others, who may look late.
me=$(basename "$0" .t)
cd "$GRADCOMP_BUILD/../at" && touch "$me" && i=0
until [ -n "${EXPECTED-}" ] && [ -f ../seen ] || [ $i -ge ${EXPECTED:+20}10 ]; do
	[ "$(echo * | wc -w)" != "${EXPECTED-}" ] || { echo * >"../seen.$me" && mv -n "../seen.$me" ../seen; }
	sleep 0.1
	i=$((i + 1))
done
[ -z "${EXPECTED-}" ] || set -- $(cat ../seen)
[ $# -gt 0 ] || set -- *
echo "# beside $me:" "$@"
sleep 0.5
rm "$me"
echo "ok 1 - x"
echo "1..1"
END
done
check "two that start clusters and two others, one at a time" run -j 1 tests/cluster/a.t tests/cluster/b.t tests/unit/c.t tests/unit/d.t
beside=$(cat "$tmp/build/tests/log/"cluster-[ab].t.tap "$tmp/build/tests/log/"unit-[cd].t.tap | grep beside)
like "one of each runs at a time" "$beside" "beside a: a c"
unlike "no two clusters" "$beside" " a b"
unlike "no two others" "$beside" " c d"
EXPECTED=4 check "two at a time" run -j 2 tests/cluster/a.t tests/cluster/b.t tests/unit/c.t tests/unit/d.t
like "clusters run beside each other where there is room" "$(grep -h beside "$tmp/build/tests/log/"cluster-a.t.tap)" "beside a: a b c d"
rm "$tmp/seen"
EXPECTED=4 check "with those that install another system" run -j 2 tests/cluster/a.t tests/cluster/b.t tests/distro/e.t tests/distro/f.t \
	tests/unit/c.t tests/unit/d.t
is "they come first, one other computes beside them, and one waits" \
	"$(grep -h beside "$tmp/build/tests/log/"distro-[ef].t.tap)" "# beside e: a c e f
# beside f: a c e f"

umask 077
check "surroundings" env GRADCOMP=topk GRADCOMP_REPORT=x MAKEFLAGS=w GRADCOMP_SRC="$tmp/src" GRADCOMP_BUILD="$tmp/build" \
	"$runner" tests/cluster/env.t
like "... do not reach a test" "$(cat "$tmp/build/tests/log/cluster-env.t.tap")" "unset unset unset 0022"

umask 022
if [ "$(id -u)" = 0 ] && unshare --mount true 2>/dev/null; then
	script unit/others.t <<'END'
setpriv --reuid 61234 --regid 61234 --clear-groups cat "$GRADCOMP_SRC/tests/unit/others.t" >"$GRADCOMP_BUILD/seen" || printf "not "
echo "ok 1"
echo "1..1"
END
	mkdir -m 700 "$tmp/home"
	mkdir "$tmp/home/a"
	mv "$tmp/src" "$tmp/home/a/src"
	check "a tree that other users cannot come to" env GRADCOMP_SRC="$tmp/home/a/src" GRADCOMP_BUILD="$tmp/home/a/build" "$runner" tests/unit/others.t
	check "... can be read by them in a test" [ -s "$tmp/home/a/build/seen" ]
	is "... and not elsewhere" "$(stat -c %a "$tmp/home")" 700
	mv "$tmp/home/a/src" "$tmp/src"
else
	skip "a tree that other users cannot come to" "mount namespaces need root"
fi

# Interrupted: the running test is told, and the runner fails.
rm -f "$tmp/build/late" "$tmp/build/began"
env GRADCOMP_SRC="$tmp/src" GRADCOMP_BUILD="$tmp/build" "$runner" -t 60 tests/unit/late.t >"$tmp/out" &
pid=$!
n=0
until [ -f "$tmp/build/began" ] || [ $n -ge 100 ]; do
	sleep 0.1
	n=$((n + 1))
done
kill -TERM $pid
wait $pid
is "interrupted: exit status" $? 130
is "... the test could clean up" "$(cat "$tmp/build/late")" stopped
done_testing
