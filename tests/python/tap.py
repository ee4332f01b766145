"""TAP for Python tests, and groups of ranks on this machine."""

import atexit
import contextlib
import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("GRADCOMP_BUILD", os.path.join(SOURCE, "build"))
_count = _failed = 0
_no_settings = tempfile.NamedTemporaryFile(prefix="gradcomp-test-", suffix=".conf")
os.chmod(_no_settings.name, 0o644)  # for ranks() of other users
atexit.register(_no_settings.close)  # what refers to this module may outlive the interpreter


def ok(passed, name, *details):
    global _count, _failed
    _count += 1
    _failed += not passed
    print(f"{'ok' if passed else 'not ok'} {_count} - {name}", flush=True)
    if not passed:
        for d in details:
            for line in str(d).splitlines():
                print(f"#   {line}")
    return passed


def error_of(function, *arguments, **named):
    """The exception that a call ends with; None when it does not."""
    try:
        function(*arguments, **named)
    except BaseException as e:  # KeyboardInterrupt is tested for too
        return e
    return None


def things(got, name, ends):
    """Ranks of programs with rank.py have said things, all of them good, and have ended with the statuses `ends`, of which None is any."""
    lines = [line.split(" ", 1) for _, out, _ in got for line in out.splitlines() if line.startswith(("ok ", "not "))]
    wrong = [line for how, line in lines if how == "not"]
    ended = len(got) == len(ends) and all(end is None or status == end for (status, _, _), end in zip(got, ends))
    return ok(lines and not wrong and ended, f"{name}: {len(lines)} things", *wrong[:8], "" if ended else errors(got))


WHOLE = os.environ.get("WHOLE") == "yes"  # in check-long


def in_part(i, n):
    """For a test with more cases than CI has time for: tests/support/tap.h."""
    return WHOLE or i % n == int(os.environ.get("PART", time.time() // 86400)) % n


def skip_all(why):
    print(f"1..0 # SKIP {why}")
    sys.exit(0)


def need_library():
    if not os.path.exists(os.path.join(BUILD, "lib/libgradcomp.so")):
        skip_all(f"no libgradcomp.so in {BUILD}/lib")


def need_gloo():
    """Imports PyTorch to ask it only where no test in this build folder has: that takes longer than some tests do."""
    spec, known = importlib.util.find_spec("torch"), os.path.join(BUILD, "tests/gloo")
    if spec is None:
        skip_all("no PyTorch for " + sys.executable)
    asked = f"{sys.executable} {spec.origin} {os.stat(spec.origin).st_mtime_ns}"
    with contextlib.suppress(OSError), open(known) as f:
        if f.read() == asked:
            return
    try:
        import torch
    except ImportError:
        skip_all("no PyTorch for " + sys.executable)
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        skip_all("PyTorch without Gloo")
    with contextlib.suppress(OSError):
        with open(f"{known}.{os.getpid()}", "w") as f:
            f.write(asked)
        os.replace(f.name, known)


def current(what, seconds=240):
    """The python of a current torch, jax or tensorflow, or of frameworks, where the machine has one or can get one; else (None, why)."""
    found = subprocess.run([os.path.join(SOURCE, "tests/python/current"), what, str(seconds)], capture_output=True, text=True, check=False)
    said = found.stderr.strip().replace("\n", " ") or f"no current {what}"
    return (None, said) if found.returncode else (found.stdout.strip(), "")


def current_torch():
    python, why = current("torch")
    return python or skip_all(why)


def other_torch():
    """current_torch(), or None where there is none."""
    python, why = current("torch")
    if why:
        print("# " + why)
    return python


def errors(result):
    """What ranks() returned, for a failed test's details."""
    return "\n".join(f"rank {r}: status {status}\n{err[-1500:]}" for r, (status, _, err) in enumerate(result))


def done_testing():
    print(f"1..{_count}")
    sys.exit(_failed != 0)


def environment(**more):
    """The library and plugins of the build folder, and nobody else's settings."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GRADCOMP", "SLURM_", "PMIX_", "RANK", "WORLD_"))}
    env.update(PYTHONPATH=os.path.join(SOURCE, "python"), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1",
               GRADCOMP_LIBRARY=os.path.join(BUILD, "lib/libgradcomp.so"),
               GRADCOMP_PLUGIN_PATH=os.path.join(BUILD, "lib/gradcomp"), GRADCOMP_CONF=_no_settings.name,
               GRADCOMP_AUTO_ATTACH="no")  # tests attach models themselves, and compare with those that are not
    env.update(more)
    return {k: v for k, v in env.items() if v is not None}


def pace():
    """By how much longer than on an idle machine something takes here and now: tests/support/tap.sh."""
    script = os.path.join(SOURCE, "tests/support/tap.sh")
    return int(subprocess.run(["sh", "-c", '. "$0"; pace', script], stdout=subprocess.PIPE, check=True).stdout) / 100


def in_time(seconds, limit):
    """Whether what took so many seconds is within the limit: that of an idle machine, or of this one now."""
    return seconds <= limit or seconds <= limit * pace()


def output_of(p, timeout):
    began = time.monotonic()
    while True:
        try:
            return p.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            if not in_time(time.monotonic() - began, timeout):
                raise


def free_port():
    """Below the range out of which the kernel gives ports to others meanwhile."""
    while True:
        port = random.randrange(20000, 32000)
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("", port))
            return port


class _Forker:
    """tests/python/forker.py, by the Python that runs it, with the libraries that the loader finds."""

    def __init__(self, python, libraries, modules):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen([python, os.path.join(SOURCE, "tests/python/forker.py"), str(theirs.fileno()), *modules],
                                            env=environment(PYTHONPATH=None, LD_LIBRARY_PATH=libraries), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        self.ended = {}  # exit status by process
        atexit.register(self.close)

    def told(self, timeout):
        """Takes one message, of a process that has begun or ended: the former's number."""
        self.socket.settimeout(timeout)
        said = self.socket.recv(4096)
        if not said:
            raise RuntimeError(f"forker.py ended with status {self.process.wait()}")
        pid, status = json.loads(said)
        if status is None:
            return pid
        self.ended[pid] = status
        return None

    def close(self):
        self.socket.close()
        self.process.wait()


class _Forked:
    """A process of a forker's, as far as ranks() needs subprocess.Popen."""

    def __init__(self, forker, argv, env, user):
        self.forker, self.pid = forker, None
        self.files = [tempfile.TemporaryFile() for _ in range(2)]
        socket.send_fds(forker.socket, [json.dumps([argv, env, user]).encode()], [f.fileno() for f in self.files])
        while self.pid is None:
            self.pid = forker.told(None)

    @property
    def returncode(self):
        return self.forker.ended.get(self.pid)

    poll = returncode.fget

    def communicate(self, timeout=None):
        until = timeout and time.monotonic() + timeout
        while self.returncode is None:
            try:
                self.forker.told(until and max(until - time.monotonic(), 1e-3))
            except TimeoutError:
                raise subprocess.TimeoutExpired("a rank", timeout) from None
        text = []
        for f in self.files:
            f.seek(0)
            text.append(f.read().decode())
            f.close()
        return tuple(text)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        while self.returncode is None:
            self.forker.told(None)


_forkers = {}


def ranks(nranks, argv, timeout=60, users=None, python=sys.executable, **more):
    """Runs nranks processes as torchrun would. [(status, stdout, stderr)] by rank;
    all are killed when one takes longer than `timeout` seconds of an idle machine (status None).
    `users` are the user ids of the ranks: those of different users share no memory,
    and meet as ranks on different nodes do. `python` runs them."""

    def start(env):
        return subprocess.Popen([python] + argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, user=users[int(env["RANK"])] if users else None)

    return _results(start, nranks, timeout, more)


def forked_ranks(nranks, argv, timeout=60, users=None, python=sys.executable, modules=(), **more):
    """ranks() for tests that start many of them: processes of one Python that has imported PyTorch before, and `modules`. What
    PyTorch reads of the environment as it is imported must not be among `more`; LD_LIBRARY_PATH may."""
    key = python, more.get("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH")), modules
    if key not in _forkers:
        _forkers[key] = _Forker(*key)
    return _results(lambda env: _Forked(_forkers[key], argv, env, users[int(env["RANK"])] if users else None), nranks, timeout, more)


def _results(start, nranks, timeout, more):
    port = str(free_port())
    started = []
    try:
        for r in range(nranks):
            started.append(start(environment(RANK=str(r), WORLD_SIZE=str(nranks), LOCAL_RANK=str(r), MASTER_ADDR="127.0.0.1",
                                             MASTER_PORT=port, **more)))
        out = []
        for p in started:
            try:
                text = output_of(p, timeout)
                out.append((p.returncode, *text))
            except subprocess.TimeoutExpired:
                p.kill()
                out.append((None, *p.communicate()))
        return out
    finally:
        for p in started:
            if p.poll() is None:
                p.kill()
                p.wait()
