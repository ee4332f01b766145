#!/usr/bin/python3
"""init_process_group() asks for libuv only where PyTorch has it, and takes ranks from the program where there is no
launcher; and the first host of Slurm's lists."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, need_gloo, ok  # noqa: E402

need_gloo()
sys.path.insert(0, os.path.join(SOURCE, "python"))
from gradcomp import launch  # noqa: E402

DIST = launch.dist


def asked(store, **variables):
    """USE_LIBUV as PyTorch would see it, when TCPStore behaves as `store`."""
    kept, real = dict(os.environ), (DIST.TCPStore, DIST.init_process_group)
    seen = []
    DIST.TCPStore, DIST.init_process_group = store, lambda *_, **__: seen.append(os.environ.get("USE_LIBUV"))
    try:
        os.environ.pop("USE_LIBUV", None)
        os.environ.update(RANK="0", WORLD_SIZE="1", **variables)
        launch.init_process_group()
    finally:
        os.environ.clear()
        os.environ.update(kept)
        DIST.TCPStore, DIST.init_process_group = real
    return seen


def without(*_, use_libuv, **__):
    raise RuntimeError("use_libuv was requested but PyTorch was build without libuv support")


def unreachable(*_, use_libuv, **__):
    raise RuntimeError("the server socket has failed to listen")


def old(host, port, world_size, is_master, timeout=None, wait_for_workers=True):
    raise AssertionError("never called with these")


ok(asked(lambda *_, use_libuv, **__: None) == [None], "a PyTorch with libuv decides by itself")
ok(asked(without) == ["0"], "one without is told not to use it", asked(without))
ok(asked(without, USE_LIBUV="1") == ["1"], "what the user has set stays")
ok(asked(old) == [None], "one that knows no libuv is left alone")
ok(asked(unreachable) == [None], "another error of the store says nothing about libuv")
ok(launch._has_libuv() in (True, False), "this PyTorch answers")



def alone(*variables, **options):
    """What PyTorch is given where no launcher has set anything but `variables`; or the exception."""
    kept, real = dict(os.environ), DIST.init_process_group
    given = []
    DIST.init_process_group = lambda *_, **named: given.append(named)
    try:
        for name in [n for n in os.environ if n.startswith(("RANK", "WORLD_SIZE", "MASTER_", "SLURM_"))]:
            del os.environ[name]
        os.environ.update(dict(v.split("=") for v in variables))
        launch.init_process_group("gloo", **options)
    except Exception as e:
        return e
    finally:
        os.environ.clear()
        os.environ.update(kept)
        DIST.init_process_group = real
    return given[0]


spawned = {"init_method": "tcp://127.0.0.1:9", "rank": 1, "world_size": 2}
ok(alone(**spawned) == spawned, "ranks that multiprocessing.spawn() has started say who they are", alone(**spawned))
ok(alone(rank=-1).get("world_size") == 1, "who says nothing is one process alone", alone(rank=-1))
got = alone("RANK=0", "WORLD_SIZE=2")
ok(got == {}, "without MASTER_ADDR the error is PyTorch's, which names it", repr(got))

for hosts, first in (("n1", "n1"), ("n1,n2", "n1"), ("n[1-4]", "n1"), ("n[03-07,9]-ib,m1", "n03-ib")):
    ok(launch._first_host(hosts) == first, f"{hosts} begins with {first}", launch._first_host(hosts))
done_testing()
