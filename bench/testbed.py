"""What the bench programs share: a Slurm cluster of four shaped nodes, running
commands on it, tables and JSON rows."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Failed(Exception):
    """A command failed; the text says which, with the end of its output."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def environment(prefix):
    """Debian's python3 before others, gradcomp from its prefix, one thread a rank
    (several ranks share the cores)."""
    env = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    env["PATH"] = os.path.join(prefix, "bin") + ":/usr/bin:/bin:/usr/sbin:/sbin:" + env.get("PATH", "")
    env["PYTHONPATH"] = os.path.join(prefix, "lib", "gradcomp", "python")
    for name in [n for n in env if n.startswith(("GRADCOMP", "SLURM_", "PMIX_", "OMPI_", "RANK", "WORLD_SIZE"))]:
        del env[name]
    return env


def run(argv, env, timeout, accept=(0,)):
    """stdout of a command, which must end with an accepted status within `timeout`
    seconds."""
    text = " ".join(argv)
    try:
        done = subprocess.run(argv, env=env, timeout=timeout, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
    except subprocess.TimeoutExpired as e:
        tail = (e.stderr or b"").decode(errors="replace").splitlines()[-8:]
        raise Failed(f"no end after {timeout} s: {text}\n" + "\n".join(tail)) from None
    if done.returncode not in accept:
        tail = (done.stdout + done.stderr).splitlines()[-15:]
        raise Failed(f"exit status {done.returncode}: {text}\n" + "\n".join(tail))
    return done.stdout


class Cluster:
    """tests/cluster/cluster, up for the length of a `with` block; with an NFS server of
    the folder `nfs` when that is given, and links with a latency that can be set when one is."""

    def __init__(self, name, prefix, nodes=4, share=(), nfs=None, latency=None):
        self.nodes, self.env = nodes, environment(prefix)
        self._more = (["--nfs", nfs] if nfs else []) + (["--latency", latency] if latency else [])
        share = list(share) + ([nfs] if nfs else [])
        self._command = [os.path.join(SOURCE, "tests/cluster/cluster"), "--name", name]
        self._plugstack = os.path.join(prefix, "etc/slurm/plugstack.conf.d/gradcomp.conf")
        self._share = list(share) + [prefix]

    def __enter__(self):
        # One left by a killed run is taken down first; a running one is ours by its name.
        self.down()
        up = self._command + ["up", "--nodes", str(self.nodes), "--plugstack", self._plugstack]
        for folder in self._share:
            up += ["--share", folder] if folder.startswith(("/tmp/", "/var/tmp/")) else []
        run(up + self._more, self.env, 120)
        return self

    def __exit__(self, *_):
        with undisturbed():
            self.down()

    def down(self):
        run(self._command + ["down"], self.env, 60)

    def rate(self, rate):
        run(self._command + ["rate", rate], self.env, 30)

    def latency(self, latency):
        run(self._command + ["latency", latency], self.env, 30)

    def run(self, *argv, timeout=120, env=None):
        return run(self._command + ["run"] + list(argv), dict(self.env, **(env or {})), timeout)

    def run_on(self, node, *argv, timeout=120):
        return run(self._command + ["node", str(node)] + list(argv), self.env, timeout)

    def counted(self):
        """[(sent, received)] bytes of every node's interface so far."""
        rows = run(self._command + ["bytes"], self.env, 30)
        return [tuple(map(int, line.split()[1:])) for line in rows.splitlines()]

    def counted_by_name(self):
        """The same of every machine, by its name."""
        rows = run(self._command + ["bytes"], self.env, 30)
        return {line.split()[0]: tuple(map(int, line.split()[1:])) for line in rows.splitlines()}

    def nfs(self, command):
        return run(self._command + ["nfs", command], self.env, 30)

    def sent(self):
        """Bytes all nodes have sent so far."""
        return sum(sent for sent, _ in self.counted())

    def start(self, node, *argv):
        """A command on node 1, 2, ... in the background."""
        return subprocess.Popen(self._command + ["node", str(node)] + list(argv), env=self.env,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

    def srun(self, *argv, timeout=120, env=None):
        """srun on all nodes, one task each unless argv says otherwise; never waits
        for ever on a node that has gone."""
        minutes = timeout // 60 + 1
        return self.run("srun", f"-N{self.nodes}", f"--time={minutes}", "--kill-on-bad-exit=1", *argv,
                        timeout=timeout, env=env)


@contextlib.contextmanager
def undisturbed():
    """Signals wait while a clean-up is at work."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def interruptible():
    """SIGTERM and SIGHUP unwind the program as Ctrl-C does."""
    def stop(number, _frame):
        sys.exit(128 + number)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def shown(rows, columns):
    """A table of dicts: columns are (key, heading, format)."""
    cells = [[h for _, h, _ in columns]]
    for row in rows:
        cells.append([format(row[k], f) if row.get(k) is not None else "-" for k, _, f in columns])
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip()
             for line in cells]
    return "\n".join(lines[:1] + ["  ".join("-" * w for w in widths)] + lines[1:])


def write_json(path, rows):
    """Published by rename: a reader never sees half a file."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as f:
        json.dump(rows, f, indent=1)
        f.write("\n")
    os.rename(temporary, path)


def main(program):
    """Runs program(); its exit status is 1 with a message for what it reports."""
    interruptible()
    start = time.monotonic()
    try:
        program()
    except Failed as e:
        say(f"{os.path.basename(sys.argv[0])}: {e}")
        sys.exit(1)
    except KeyboardInterrupt:
        say(f"{os.path.basename(sys.argv[0])}: interrupted after {time.monotonic() - start:.0f} s")
        sys.exit(130)
