"""A Python that has imported PyTorch, and the modules that the arguments after the first name, and becomes the
programs that it is sent: a fork takes milliseconds, the import seconds. On the socket whose descriptor is the first
argument come [command line, environment, user id or null] with
the descriptors of stdout and stderr; the answer is the process, and once more with its exit status
when it has ended. tap.forked_ranks() is the other side."""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys

# PyTorch imports the last one when it shards a model or first uses an optimizer, which takes as long as all the rest.
for name in ("torch", "torch.nn.parallel", "torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo", *sys.argv[2:]):
    if name == "torch._dynamo" and sys.modules["torch"].__version__ < "2":
        continue
    with contextlib.suppress(Exception):  # older PyTorch lacks some, and Debian's cannot import all that it has
        importlib.import_module(name)
gc.freeze()  # a collection would write to all that the programs share


def next_program(server):
    """Returns in a process of its own for each program; ends with the socket."""
    running = {}
    while True:
        for fd in select.select([server, *running], [], [])[0]:
            if fd in running:
                pid = running.pop(fd)
                os.close(fd)
                server.send(json.dumps([pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]).encode())
                continue
            said, fds, _, _ = socket.recv_fds(server, 1 << 20, 2)
            if not said:
                for pid in running.values():
                    os.kill(pid, signal.SIGKILL)
                sys.exit()
            pid = os.fork()
            if not pid:
                server.close()
                for fd in running:
                    os.close(fd)
                for to, fd in enumerate(fds, 1):
                    os.dup2(fd, to)
                    os.close(fd)
                return json.loads(said)
            running[os.pidfd_open(pid)] = pid
            for fd in fds:
                os.close(fd)
            server.send(json.dumps([pid, None]).encode())


def become(command, environment, user):
    """What the interpreter does for `python COMMAND...` with that environment, of that user."""
    if user is not None:
        os.setreuid(user, user)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as it is after exec: /proc/self is the user's
    os.environ.clear()
    os.environ.update(environment)
    if command[0] == "-c":
        code, sys.argv, folder = compile(command[1], "<string>", "exec"), ["-c", *command[2:]], ""
    else:
        with open(command[0], encoding="utf-8") as f:
            code, sys.argv, folder = compile(f.read(), command[0], "exec"), command, os.path.dirname(command[0])
    sys.path[:1] = [folder, *environment.get("PYTHONPATH", "").split(":")]
    names = sys.modules["__main__"].__dict__
    names.update(__file__=command[0])
    exec(code, names)


become(*next_program(socket.socket(fileno=int(sys.argv[1]))))
