"""Finding the other ranks: torch.distributed from Slurm or torchrun, and the
store that torch.distributed already has as a way to wire a job up."""

from __future__ import annotations

import atexit
import datetime
import fcntl
import os
import re
import socket
import struct
import subprocess
import time
from typing import Any

import torch.distributed as dist


def init_process_group(backend: str = "gloo", **options: Any) -> None:
    """torch.distributed.init_process_group() with what it needs from the launcher:
    torchrun's variables as they are, else Slurm's step, else what `options` say (rank=, world_size=, store=,
    init_method=, as after multiprocessing.spawn()), else one process alone."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        pass
    elif "SLURM_STEP_ID" in os.environ and "SLURM_PROCID" in os.environ:
        os.environ["RANK"] = os.environ["SLURM_PROCID"]
        os.environ["WORLD_SIZE"] = os.environ["SLURM_STEP_NUM_TASKS"]
        os.environ.setdefault("LOCAL_RANK", os.environ["SLURM_LOCALID"])
        if "MASTER_ADDR" not in os.environ:
            os.environ["MASTER_ADDR"] = _node_address(_first_host(os.environ["SLURM_STEP_NODELIST"]))
        # Equal on all ranks, another one for every step, below the ephemeral ports.
        step = int(os.environ["SLURM_JOB_ID"]) * 61 + int(os.environ["SLURM_STEP_ID"])
        os.environ.setdefault("MASTER_PORT", str(12000 + step % 16000))
    else:
        if not any(options.get(name) not in (None, -1) for name in ("rank", "world_size", "store", "init_method")):
            options.update(store=dist.HashStore(), rank=0, world_size=1)
        _init(backend, options)
        return
    if backend == "gloo" and "GLOO_SOCKET_IFNAME" not in os.environ and int(os.environ["WORLD_SIZE"]) > 1 \
            and "MASTER_ADDR" in os.environ:  # else PyTorch says that it is missing
        # Left alone, Gloo listens where the host's name resolves to: often 127.0.1.1.
        name = _interface_to(os.environ["MASTER_ADDR"])
        if name is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = name
    _init(backend, options)


def _init(backend: str, options: dict[str, Any]) -> None:
    if not _has_libuv():
        os.environ.setdefault("USE_LIBUV", "0")
    dist.init_process_group(backend, **options)
    atexit.unregister(_rest)
    atexit.register(_rest)


def _rest() -> None:
    """Lets Gloo's threads have the interpreter, which they free the last step's tensors with: one that still
    waits for it when Python ends aborts the process."""
    if dist.is_initialized():
        time.sleep(0.02)


def _has_libuv() -> bool:
    """False where PyTorch was built without libuv: from 2.4 on it asks for it all the same."""
    try:
        dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False, use_libuv=True)
    except RuntimeError as e:
        return "libuv" not in str(e)
    except TypeError:  # of a PyTorch that cannot be asked for it
        pass
    return True


def _first_host(hostlist: str) -> str:
    """The first name of a Slurm host list: n[03-07,9]-ib,m1 -> n03-ib."""
    prefix = re.split(r"[\[,]", hostlist)[0]
    if hostlist[len(prefix):len(prefix) + 1] != "[":
        return prefix
    inside, _, after = hostlist[len(prefix) + 1:].partition("]")
    return prefix + re.split("[-,]", inside)[0] + re.split(r"[\[,]", after)[0]


def _node_address(name: str) -> str:
    """The node's address as the resolver, or else Slurm, knows it."""
    try:
        return socket.gethostbyname(name)
    except OSError:
        pass
    try:
        shown = subprocess.run(["scontrol", "-o", "show", "node", name], capture_output=True, text=True, timeout=10)
        found = re.search(r"\bNodeAddr=(\S+)", shown.stdout)
    except (OSError, subprocess.TimeoutExpired):
        found = None
    if not found:
        raise RuntimeError(f"no address for node {name}: neither the resolver nor scontrol knows it; set MASTER_ADDR")
    return found.group(1)


def _interface_to(address: str) -> str | None:
    """The name of the interface that traffic to `address` leaves by."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect((address, 9))
            own = s.getsockname()[0]
            for _, name in socket.if_nameindex():
                try:
                    got = fcntl.ioctl(s, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                except OSError:
                    continue
                # The master's own node routes to itself by lo, yet has the address on its interface.
                if socket.inet_ntoa(got[20:24]) == own:
                    return name
    except OSError:
        pass
    return None


class TorchStore:
    """torch.distributed's own store, as a Job takes one."""

    jobs = 0

    def __init__(self) -> None:
        from torch.distributed.distributed_c10d import _get_default_store

        TorchStore.jobs += 1
        self.rank, self.nranks = dist.get_rank(), dist.get_world_size()
        self._store: Any = dist.PrefixStore(f"gradcomp/{TorchStore.jobs}", _get_default_store())

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout_ms: int) -> bytes:
        self._store.wait([key], datetime.timedelta(milliseconds=timeout_ms))
        return bytes(self._store.get(key))


class LaunchedStore(TorchStore):
    """The store that torchrun's variables name, for a program that makes no process group."""

    def __init__(self) -> None:
        if not _has_libuv():
            os.environ.setdefault("USE_LIBUV", "0")
        store, self.rank, self.nranks = next(iter(dist.rendezvous("env://")))
        self._store = dist.PrefixStore("gradcomp", store)


def global_ranks(process_group: Any) -> list[int]:
    """The global ranks of a process group, in its order."""
    if hasattr(dist, "get_process_group_ranks"):
        return list(dist.get_process_group_ranks(process_group))
    from torch.distributed import distributed_c10d as c10d

    if process_group is c10d._get_default_group():
        return list(range(dist.get_world_size()))
    ranks = c10d._pg_group_ranks[process_group]
    return sorted(ranks, key=lambda r: ranks[r])
