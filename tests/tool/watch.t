#!/bin/bash
# gradcomp watch on this machine: a job is shown until it ends, a socket that is no job's does no harm, and what
# squeue and srun say is read with care.
# shellcheck source=tests/tool/tool.sh
. "${GRADCOMP_SRC:?}/tests/tool/tool.sh" || exit 1
export GRADCOMP_PLUGIN_PATH=$GRADCOMP_BUILD/lib/gradcomp
command -v python3 > /dev/null || skip_all 'python3 is not installed'
"$gradcomp" watch --once --here 2>&1 | grep -q 'without jansson' && skip_all 'gradcomp was built without jansson'
children=
# shellcheck disable=SC2329 # called by tap.sh
cleanup () { for child in $children; do kill "$child"; done 2> /dev/null; }

refuse 'no job' "$gradcomp" watch
is 'is wrong usage' "$tap_status" 2
refuse 'no number' "$gradcomp" watch '1;reboot'
like 'is named' "$said" "JOB is '1;reboot'; the number of a job, as squeue shows it"
for interval in 0 1e9 nan x; do
	refuse "--interval $interval" "$gradcomp" watch --interval $interval --here
	like "--interval $interval: what it may be" "$said" 'seconds, 0.1 to 3600'
done

# begin SPEC: a job of one process; its id is $pid, which is the job's number as well
begin () {
	GRADCOMP=$1 "$gradcomp" bench reduce --tensors 256x256 --iters 1000000 > "$tmp/job" 2>&1 &
	pid=$!
	children="$children $pid"
}
seen () { "$gradcomp" watch --here --once --interval 0.1 "$pid" 2> "$tmp/err" | grep -q ' [1-9][0-9]* steps, '; }
begin topk:density=0.1
check 'a job' wait_for 30 seen || note "$(cat "$tmp/err" "$tmp/job")"
check 'is shown' "$gradcomp" watch --here --once --interval 0.1 "$pid"
like 'with its SPEC as typed' "$said" "$pid.0 on $(uname -n): topk:density=0.1 over ring, 1 rank of 1 node, "
refuse 'another number is not' "$gradcomp" watch --here --once $((pid + 1))
like 'and is told so' "$said" "nothing here uses gradcomp: no job of yours with the number $((pid + 1)) runs a rank 0 on this machine"
check 'on a terminal' timeout 60 python3 -c '
import os, pty, sys
pid, fd = pty.fork()
if not pid:
    os.execv(sys.argv[1], [sys.argv[1], "watch", "--here", "--interval", "0.1", sys.argv[2]])
text = b""
while text.count(b"\x1b[1A") < 2:
    text += os.read(fd, 4096)
os.close(fd)
assert all(len(line) < 80 + 20 for line in text.split(b"\r\n")), text' "$gradcomp" "$pid"
"$gradcomp" watch --here --interval 0.1 "$pid" > "$tmp/lines" 2> "$tmp/err" &
watcher=$!
several () { [ "$(wc -l < "$tmp/lines")" -ge 3 ]; }
check 'a line a look' wait_for 30 several
kill "$pid"
wait "$pid" 2> /dev/null
wait $watcher
is 'ends when the job does' $? 0
is 'with no more to say' "$(cat "$tmp/err")" ''
is 'and no escape codes' "$(tr -d '\n' < "$tmp/lines" | tr -d '[:print:]' | wc -c)" 0
begin auto
check 'auto' wait_for 30 seen
like 'says what is used' "$("$gradcomp" watch --here --once --interval 0.1 "$pid")" ': auto ('
kill "$pid"
wait "$pid" 2> /dev/null
printf '[report]\nlive = no\n[gradcomp]\nlock = report.live\n' > "$tmp/conf"
begin none
quiet=$pid
refuse 'a user does not unlock report.live' env GRADCOMP_REPORT_LIVE=yes "$gradcomp" bench reduce --tensors 8 --iters 1
like 'as is said' "$said" 'report.live is locked by'
refuse 'report.live = no' "$gradcomp" watch --here --once "$quiet"
kill "$quiet"
wait "$quiet" 2> /dev/null
: > "$tmp/conf"

# 400 sockets named as a job's, of another user where this is root, whose queues are full.
cat > "$tmp/crowd.py" <<'PY'
import os, resource, socket, sys, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
kept = []
for i in range(400):
    name = "\0gradcomp-live/%d.0/%016x" % (880000 + i, i)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.bind(name)
    s.listen(0)
    kept.append(s)
    while True:
        c = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        c.setblocking(False)
        try:
            c.connect(name)
        except BlockingIOError:
            break
        kept.append(c)
print("ready", flush=True)
time.sleep(600)
PY
begin topk:density=0.2
check 'a job again' wait_for 30 seen
python3 "$tmp/crowd.py" > "$tmp/crowd" &
crowd=$!
children="$children $crowd"
crowded () { grep -q ready "$tmp/crowd"; }
check 'and a crowd' wait_for 30 crowded
from=$(date +%s)
said=$(timeout 60 "$gradcomp" watch --here --once --interval 0.1 2> "$tmp/err")
like 'the job is shown beside it' "$said" "$pid.0 on $(uname -n): topk:density=0.2 over ring"
check 'soon' [ $(($(date +%s) - from)) -le "$(scaled 10)" ]
like 'and what could not be asked' "$(cat "$tmp/err")" 'cannot be asked'
kill "$pid" "$crowd"
wait "$pid" "$crowd" 2> /dev/null

# Sockets of the right name: what they answer, or not, after "ready".
cat > "$tmp/liar.py" <<'PY'
import socket, sys, time
kind = sys.argv[1]
row = '{"asked":"x","compressor":"x","collective":"y","ranks":2,"steps":%s,"dense_bytes":%s,"wire_bytes":1,"exchange_s":1}'
job = '{"schema":1,"nodes":1,"ranks":2,"wall_s":%s,"failure":%s,"reducers":[%s],"coders":[]}'
say = {
    "nothing": "", "noise": "\x00\x01\x02" * 1000, "half": '{"schema":1,"reducers":[', "list": "[1,2]", "deep": "[" * 100000,
    "schema": '{"schema":2,"reducers":[]}', "endless": None, "silent": None, "twice": '{"schema":1,"schema":1,"reducers":[]}',
    "types": job % ('"long"', "[]", '{"asked":3,"steps":"many","collective":{}},7,"x",null'),
    "codes": job % (1, '"\\u001b[2J\\n\\u0007 bad"', row.replace('"x"', '"\\u001b]0;x\\u0007"') % (3, 4)),
    "numbers": job % ("1e308", "null", row % ("-5", "-1e300")),
    "many": job % (1, "null", ",".join([row % (1, 2)] * 1000)),
    "long": job % (1, "null", row.replace('"x"', '"' + "x" * 100000 + '"') % (1, 2)),
}[kind]
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
s.bind("\0gradcomp-live/990099.0/0123456789abcdef")
s.listen(8)
open(sys.argv[2], "w").close()
while True:
    c, _ = s.accept()
    try:
        while kind == "endless":
            c.sendall(b"[1," * 10000)
        if kind == "silent":
            time.sleep(600)
        c.sendall(say.encode())
    except OSError:
        pass
    c.close()
PY
# lie KIND: such a socket, and what is said of it, in $said
lie () {
	rm -f "$tmp/ready"
	python3 "$tmp/liar.py" "$1" "$tmp/ready" &
	liar=$!
	children="$children $liar"
	wait_for 20 test -e "$tmp/ready"
	said=$(timeout 60 "$gradcomp" watch --here --once --interval 0.1 990099 2>&1)
	tap_status=$?
	kill $liar
	wait $liar 2> /dev/null
}
for kind in nothing noise half list deep schema endless silent twice; do
	lie $kind
	like "an answer that is $kind is none" "$tap_status $said" '1 gradcomp: nothing here uses gradcomp'
done
lie types
is 'wrong types: nothing is known' "$tap_status $(grep -c '^990099.0 on .*0 ranks of 1 node' <<< "$said")" '0 4'
lie codes
is 'control characters are not printed' "$(tr -d '\n' <<< "$said" | tr -d '[:print:]' | wc -c)" 0
like 'nor end a line' "$said" 'failed: '
lie numbers
is 'impossible numbers are 0, and of no step there is no share' "$tap_status $(grep -c ', 0 steps$' <<< "$said")" '0 1'
lie many
is 'a thousand reducers: as many as there is room for' "$(wc -l <<< "$said")" 128
lie long
check 'a long text is cut' test "$tap_status" = 0 -a "${#said}" -lt 1000

# squeue, scontrol and srun, as they are and are not.
mkdir "$tmp/bin"
me=$(id -u)
stub () { printf '#!/bin/sh\n%s\n' "$2" > "${tmp:?}/bin/$1" && chmod 755 "$tmp/bin/$1"; }
slurm () { PATH=$tmp/bin:$PATH timeout 60 "$gradcomp" watch --interval 0.1 "$@"; }
# shellcheck disable=SC2016 # for the shell of the stub
stub squeue 'case $* in *-s*) echo "7.0 n[1-2]"; echo "7.extern n[1-9]" ;; *) n=$(cat '"$tmp"'/asked 2> /dev/null); echo "${n}x" > '"$tmp"'/asked
	[ "$n" ] && s=COMPLETED || s=RUNNING; echo "7 '"$me"' $s me" ;; esac'
stub scontrol 'printf "n1\nn2\n"'
# shellcheck disable=SC2016
stub srun 'echo "$*" >> '"$tmp"'/srun
printf "%s\n" "{\"job\":\"7.0\",\"host\":\"n1\",\"pid\":1,\"part\":0,\"asked\":\"x\",\"collective\":\"ring\",\"ranks\":4,\"nodes\":2,\"steps\":5}" \
	"{" "[]" "{\"job\":7}" "srun: something" "{\"job\":\"7.0\",\"host\":\"\\u001b[2J\",\"steps\":-1}"
head -c 100000 /dev/zero | tr "\0" "{"'
check 'a job until it ends' slurm 7
is 'rows are shown' "$(grep -v '^gradcomp: ' <<< "$said" | grep -c '^7.0 on ')" 2
is 'of anything else nothing' "$(grep -vc '^7.0 on ' <<< "$said")" 1
like 'its end is told' "$said" 'gradcomp: job 7 has ended'
is 'no control characters' "$(tr -d '\n' <<< "$said" | tr -d '[:print:]' | wc -c)" 0
is 'the first node of a step is asked' "$(grep -c -- ' -w n1 ' "$tmp/srun")" 1
like 'within the job' "$(cat "$tmp/srun")" '--jobid=7 --overlap --mpi=none -N 1 -n 1'
rm -f "$tmp/asked" "$tmp/srun"
stub srun 'echo "$*" >> '"$tmp"'/srun; echo "srun: error: Unable to create step for job 7: Access denied" >&2; exit 1'
refuse 'srun that fails' slurm 7
is 'is quoted' "$said" 'gradcomp: job 7 cannot be looked at: srun: error: Unable to create step for job 7: Access denied'
is 'after all nodes were tried' "$(grep -c -- ' -N 2 -n 2 .* -w n1,n2 ' "$tmp/srun")" 1
rm -f "$tmp/asked"
# shellcheck disable=SC2016
stub srun 'kill -TERM $(cat '"$tmp"'/watcher); exec sleep 600'
# shellcheck disable=SC2016
timeout 60 sh -c 'echo $$ > "$1/watcher"; PATH=$1/bin:$PATH exec "$2" watch 7' - "$tmp" "$gradcomp" > "$tmp/lines" 2>&1
is 'a signal ends it, and its step' $? 143
for answer in '7 0x7 RUNNING me' nonsense; do
	stub squeue "echo '$answer'"
	refuse "squeue that says $answer" slurm 7
	like "squeue that says $answer: so it is told" "$said" "gradcomp: job 7 cannot be asked for: squeue says $answer"
done
stub squeue "echo '7 $((me + 1)) RUNNING bob'"
refuse 'a job of another user' slurm 7
is 'is told whose it is' "$said" 'gradcomp: job 7 is not yours: gradcomp watch shows jobs to who runs them; this one is of bob'
stub squeue "echo '7 $me RUNNING me'; echo '8 $me RUNNING me'"
refuse 'a job array' slurm 7
like 'is told so' "$said" 'job 7 is several jobs: name one of them'
stub squeue 'echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1'
refuse 'no controller' slurm 7
like 'is told so' "$said" 'job 7 cannot be asked for: slurm_load_jobs error: Unable to contact'
stub squeue 'printf "squeue: error: DNS SRV lookup failed\\nsqueue: fatal: Could not establish a configuration source\\n" >&2; exit 1'
refuse 'no configuration of Slurm' slurm 7
is 'the last line is quoted' "$said" 'gradcomp: job 7 cannot be asked for: squeue: fatal: Could not establish a configuration source'
done_testing
