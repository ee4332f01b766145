"""What the backend does under a policy (gradcomp.h, doc/user/policies.md): which calls of a process group are compressed, and how.

A process group has a lane for each of all_reduce, all_gather and reduce_scatter: a group of the library's own, coders and reducers on
it, and a thread that carries its calls out one after another. What is made on the way (a coder, a reducer, connections) is made
there, so that no call waits for ranks that have not come to it yet, whatever order a program gives to those of several groups.

Error memory. A coder or reducer may add what earlier codes of a tensor lost only where the tensor is known to be the same. Nobody
says which one an all_reduce has: so the calls since the last step of an optimizer are compared with those of the steps before. A call
whose step has had the same sizes and types as exactly one of them is taken for the one at its place there, if all ranks take it so, for
which they exchange two numbers."""

from __future__ import annotations

import ctypes
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from ctypes import byref, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _lib, _log
from . import job as _jobs
from ._lib import Call, Error, ErrorText, lib
from .coder import Coder
from .job import Group, Reducer

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = range(3)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
ROLES = ("no role", "dp", "tp", "pp", "ep")
_LISTS = 8  # of calls of a step that a lane knows
_LONGEST = 16384  # calls of a step


class Entry(NamedTuple):
    """An entry of a policy."""
    number: int
    selector: str
    spec: str
    collective: str | None
    roles: int  # 1 << role for each; 0: it is for the groups of a name
    name: str | None


class Policy:
    """The policy of a job, what its groups are, and which entries were for one."""

    def __init__(self, text: str, job: _jobs.Job):
        self._handle = c_void_p()
        lib().call("policy_create", text.encode(), byref(self._handle))
        self._job = job
        self.entries = [self._entry(i) for i in range(lib().policy_entries(self._handle))]
        self._groups: dict[str, None] = {}
        self._used: set[int] = set()
        self._rows: list[dict[str, Any]] = []  # of lanes that have been closed
        self._told = False
        self.codings: weakref.WeakSet[Coding] = weakref.WeakSet()
        _watch_optimizers()
        _all_policies.add(self)

    def _entry(self, number: int) -> Entry:
        entry = _lib.PolicyEntry(struct_size=ctypes.sizeof(_lib.PolicyEntry))
        lib().call("policy_get", self._handle, number, byref(entry))
        return Entry(number, entry.selector.decode(), entry.spec.decode(), entry.collective and entry.collective.decode(), entry.roles,
                     entry.name and entry.name.decode())

    def role(self, name: str, nranks: int) -> int:
        return int(lib().policy_role(name.encode(), nranks, self._job.nranks))

    def match(self, operation: int, dtype: int, role: int, name: bytes, size: int) -> Entry | None:
        call = _lib.PolicyCall(ctypes.sizeof(_lib.PolicyCall), operation, dtype, role, name, size)
        found = lib().policy_match(self._handle, byref(call))
        return self.entries[found] if found >= 0 else None

    def meet(self, name: str, role: int, nranks: int) -> None:
        """There is such a group."""
        self._groups[f"{name} ({nranks} rank{'s' if nranks > 1 else ''}, {ROLES[role]})"] = None
        self._used |= {e.number for e in self.entries if e.roles >> role & 1 or e.name in (name, name.removeprefix("mesh_"))}

    def tell(self) -> None:
        """Says once, on one rank, which entries no group was for."""
        if self._told or self._job.rank:
            return
        self._told = True
        unused = [f"{e.selector}/{e.spec}" for e in self.entries if e.number not in self._used and e.spec != "none"]
        if unused:
            _log.warn(f"policy: {', '.join(unused)} {'is' if len(unused) == 1 else 'are'} for no group; groups there are: "
                      f"{', '.join(self._groups) or 'none'}")

    def close(self) -> None:
        handle, self._handle = self._handle, c_void_p()
        if handle:
            self.tell()
            lib().policy_free(handle)

    def keep(self, rows: list[dict[str, Any]]) -> None:
        self._rows += rows

    def stats(self, plain: bool) -> list[dict[str, Any]]:
        rows = [*self._rows, *(row for coding in list(self.codings) for row in coding.stats())]
        return rows if plain else [row for row in rows if row["entry"] is not None]


def of_job(job: _jobs.Job) -> Policy | None:
    """The policy that a job is under; a SPEC is one where all that Gloo would send is to go through the backend."""
    text = job.setting("gradcomp.compressor") or "none"
    if lib().policy_is(text.encode()) or (job.setting("gradcomp.auto_attach") == "backend" and text != "none"):
        return Policy(text, job)
    return None


class _Rounds:
    """The calls of a lane since the last step of an optimizer, and those of earlier steps."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], int] = {}  # the number of the first call of each list
        self._next = 0
        self._now: list[Any] = []
        self._fits: list[tuple[tuple[Any, ...], int]] = []
        _all_rounds.add(self)

    def place(self, call: tuple[Any, ...]) -> int:
        """The number of the call that this one is at its place in exactly one list; -1: none is known."""
        at = len(self._now)
        if at == _LONGEST:
            self._fits = []
            return -1
        self._now.append(call)
        self._fits = [(calls, first) for calls, first in self._fits if len(calls) > at and calls[at] == call]
        return self._fits[0][1] + at if len(self._fits) == 1 else -1

    def stepped(self) -> None:
        calls = tuple(self._now)
        # Where an optimizer has left a step out (a GradScaler does), the list is one that is known, several times.
        if calls and len(calls) < _LONGEST and not any(_repeats(calls, known) for known in self._known):
            for known in [known for known in self._known if _repeats(known, calls)]:
                del self._known[known]
            if len(self._known) < _LISTS:
                self._known[calls] = self._next
                self._next += len(calls)
        self._now, self._fits = [], list(self._known.items())


def _repeats(calls: tuple[Any, ...], of: tuple[Any, ...]) -> bool:
    return len(calls) % len(of) == 0 and calls == of * (len(calls) // len(of))


_all_rounds: weakref.WeakSet[_Rounds] = weakref.WeakSet()
_all_policies: weakref.WeakSet[Policy] = weakref.WeakSet()
_watching = False


def _watch_optimizers() -> None:
    global _watching
    if not _watching:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(_stepped)
        _watching = True


def _stepped(optimizer: Any, given: Any, named: Any) -> None:
    del optimizer, given, named
    for rounds in list(_all_rounds):
        rounds.stepped()
    for policy in list(_all_policies):
        policy.tell()  # the groups there are have been made by now


class _Count:
    """Of an entry in a lane."""

    def __init__(self) -> None:
        self.calls = self.plain = self.remembered = self.bytes = 0
        self.seconds = self.wire = 0.0


class Lane:
    """One operation of a process group. Any thread may start calls; they are carried out in that order."""

    def __init__(self, coding: Coding, operation: int, handle: c_void_p):
        self._coding, self.operation, self._handle = coding, operation, handle
        self._group = Group(handle, coding.job)
        self._nranks, self._me = self._group.nranks, self._group.rank
        self._coders: dict[int, Coder] = {}
        self._coded: dict[int, bool] = {}
        self._reducers: dict[tuple[int, int], _Kept] = {}
        self._counts: dict[int, _Count] = {}
        self._rounds = _Rounds() if operation != ALL_GATHER else None
        self._mutex, self._turn, self._waiting = threading.Lock(), threading.Lock(), 0
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], Callable[[Error | None], None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._scratch = torch.empty(0)
        self._given_up: str | None = None

    # How calls come to their turn.

    def submit(self, run: Callable[[], None], ended: Callable[[Error | None], None], here: bool) -> None:
        """Carries out run() when it is its turn, then calls ended(); with `here` on this thread, if nothing is before it."""
        with self._mutex:
            if here and not self._waiting:
                self._turn.acquire()
            else:
                here = False
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name=f"gradcomp-{OPERATIONS[self.operation]}", daemon=True)
                    self._thread.start()
                self._queue.put((run, ended))
            self._waiting += 1
        if here:
            try:
                failure = self._carry_out(run)
            finally:
                self._turn.release()
            ended(failure)

    def _serve(self) -> None:
        while True:
            job = self._queue.get()
            if job is None:
                return
            run, ended = job
            with self._turn:
                failure = self._carry_out(run)
            ended(failure)
            del job, run, ended

    def _carry_out(self, run: Callable[[], None]) -> Error | None:
        try:
            if self._given_up is not None:
                raise Error(_lib.ERR_STATE, self._given_up)
            with torch.no_grad():
                run()
        except Error as e:
            return e
        except Exception as e:  # whoever waits is told
            return Error(_lib.ERR_INTERNAL, f"{type(e).__name__}: {e}")
        finally:
            with self._mutex:
                self._waiting -= 1
        return None

    def abort(self, text: str) -> None:
        """Ends what waits for its turn, and all that follows."""
        self._given_up = text
        lib().group_abort(self._handle, text.encode(), byref(ErrorText()))

    def close(self, seconds: float) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(seconds)
            if self._thread.is_alive():
                return  # what it uses stays
        for coder in self._coders.values():
            coder.free()
        for kept in self._reducers.values():
            kept.reducer.free()
        lib().group_free(self._handle)
        self._coding.left()

    # What a call is.

    def place(self, call: tuple[Any, ...]) -> int:
        """To be asked once for each call, in the program's order."""
        return -1 if self._rounds is None else self._rounds.place(call)

    def all_gather(self, entry: Entry, own: Tensor, out: Tensor, counts: Sequence[int]) -> None:
        count, began = self._count(entry, out), time.monotonic()
        self._coder(entry).all_gather(own, out, counts).wait()
        count.seconds += time.monotonic() - began

    def reduce_scatter(self, entry: Entry, place: int, parts: Sequence[Tensor], out: Tensor, factor: float, scale: float) -> None:
        """`parts` in the order of ranks, or one tensor of all of them."""
        count, began = self._count(entry, out, sum(p.numel() for p in parts)), time.monotonic()
        counts = [p.numel() for p in parts] if len(parts) > 1 else [out.numel()] * self._nranks
        given = self._room(sum(counts), out.dtype)
        torch.cat([p.reshape(-1) for p in parts], out=given)
        if factor != 1:
            given.mul_(factor)
        slot = self._agreed(place)
        count.remembered += slot is not None
        self._coder(entry).reduce_scatter(given, out, counts, scale, slot).wait()
        count.seconds += time.monotonic() - began

    def all_reduce(self, entry: Entry, place: int, numbers: Tensor, factor: float, scale: float) -> None:
        count, began = self._count(entry, numbers), time.monotonic()
        if factor != 1:
            numbers.mul_(factor)
        slot, flat = self._agreed(place), numbers.view(-1)
        count.remembered += slot is not None
        if self._gives_code(entry):
            n = flat.numel()
            counts = [n // self._nranks + (r < n % self._nranks) for r in range(self._nranks)]
            mine = flat.narrow(0, sum(counts[:self._me]), counts[self._me])
            coder = self._coder(entry)
            coder.reduce_scatter(flat, mine, counts, scale, slot).wait()
            coder.all_gather(mine, flat, counts).wait()
        elif slot is None:
            count.plain += 1
            self._sum(flat)
            if scale != 1:
                flat.mul_(scale)
            count.wire += 2.0 * (self._nranks - 1) / self._nranks * flat.numel() * flat.element_size()
        else:
            self._reduce(entry, slot, flat, scale * self._nranks)
        count.seconds += time.monotonic() - began

    def _count(self, entry: Entry, t: Tensor, numbers: int | None = None) -> _Count:
        count = self._counts.setdefault(entry.number, _Count())
        count.calls += 1
        count.bytes += (t.numel() if numbers is None else numbers) * t.element_size()
        return count

    def _room(self, n: int, dtype: torch.dtype) -> Tensor:
        if self._scratch.dtype != dtype or self._scratch.numel() < n:
            self._scratch = torch.empty(n, dtype=dtype)
        return self._scratch[:n]

    def _sum(self, numbers: Tensor, op: int = _lib.SUM) -> None:
        """An all-reduce on the lane's own group."""
        code = _jobs.dtype_code(numbers.dtype)
        call = Call(struct_size=ctypes.sizeof(Call), kind=_lib.ALLREDUCE, dtype=code, op=op, out=numbers.data_ptr(), count=numbers.numel())
        err = ErrorText()
        status = lib().group_call(self._handle, byref(call), byref(err))
        if status < 0:
            raise Error(status, err.message() or lib().strerror(status).decode())

    def _agreed(self, place: int) -> int | None:
        """The place, if all ranks mean it."""
        both = torch.tensor([place, -place], dtype=torch.int64)
        self._sum(both, _lib.MIN)
        least, most = int(both[0]), -int(both[1])
        return place if least == most and place >= 0 else None

    def _gives_code(self, entry: Entry) -> bool:
        if entry.number not in self._coded:
            try:
                Coder.check(entry.spec, entry.collective)
                self._coded[entry.number] = True
            except Error:
                self._coded[entry.number] = False
        return self._coded[entry.number]

    def _coder(self, entry: Entry) -> Coder:
        coder = self._coders.get(entry.number)
        if coder is None:
            coder = Coder(self._group, entry.spec, entry.collective, name=f"{self._coding.name} {OPERATIONS[self.operation]}")
            self._coders[entry.number] = coder
        return coder

    def _reduce(self, entry: Entry, slot: int, flat: Tensor, times: float) -> None:
        kept = self._reducers.get((entry.number, slot))
        if kept is None:
            kept = self._reducers[entry.number, slot] = _Kept(self._group, entry, f"{self._coding.name} {slot}", flat)
        kept.average(flat)
        if times != 1:
            flat.mul_(times)

    def stats(self) -> list[dict[str, Any]]:
        return [self._row(number, count) for number, count in sorted(self._counts.items())]

    def _row(self, number: int, count: _Count) -> dict[str, Any]:
        wire = count.wire
        if number in self._coders:
            wire += self._coders[number].stats()["wire_bytes"]
        wire += sum(kept.reducer.stats()["wire_bytes"] for (of, _), kept in self._reducers.items() if of == number)
        entry, share = self._coding.policy.entries[number], (self._nranks - 1) / self._nranks
        dense = count.bytes * share * (2 if self.operation == ALL_REDUCE else 1)
        return {"group": self._coding.name, "ranks": self._nranks, "role": ROLES[self._coding.role],
                "operation": OPERATIONS[self.operation], "entry": f"{entry.selector}/{entry.spec}", "calls": count.calls, "plain": count.plain,
                "remembered": count.remembered, "bytes": count.bytes, "dense_bytes": dense, "wire_bytes": wire,
                "ratio": dense / wire if wire else None, "seconds": count.seconds}


class _Kept:
    """A reducer for an all_reduce that recurs. Its numbers are a matrix, as square as powers of two allow, and what is left over."""

    def __init__(self, group: Group, entry: Entry, name: str, flat: Tensor):
        n = flat.numel()
        columns = 1 << max(0, (n.bit_length() - 1) // 2)
        rows = n // columns
        parts = [(name, (rows, columns))] + ([(f"{name} rest", (n % columns,))] if n % columns else [])
        self._offsets = [0, rows * columns * flat.element_size()][:len(parts)]
        self.reducer = Reducer(group, [(part, shape, flat.dtype) for part, shape in parts], compressor=entry.spec,
                               collective=entry.collective)

    def average(self, flat: Tensor) -> None:
        for i, offset in enumerate(self._offsets):
            self.reducer.ready(i, flat.data_ptr() + offset)
        self.reducer.wait()


class Coding:
    """What a process group has for its calls that a policy compresses. `left` is called once for each of the library's groups that
    is gone."""

    def __init__(self, policy: Policy, job: _jobs.Job, nranks: int, enter: Callable[[], c_void_p], left: Callable[[], None]):
        self.policy, self.job, self.left, self._nranks, self._enter = policy, job, left, nranks, enter
        self.name, self.role, self._raw = "", 0, b""
        self._lanes: list[Lane] | None = None
        self._passed: dict[str, list[int]] = {}  # by operation: calls, bytes
        policy.codings.add(self)

    def named(self, description: str, label: str) -> None:
        """PyTorch says what the group is for when it has made it; nothing has been sent on it then. `label`: of one that nobody has
        described."""
        self.name = label if description == "undefined" else description
        self._raw = self.name.encode()
        self.role = self.policy.role(description, self._nranks)
        self.policy.meet(self.name, self.role, self._nranks)
        if self._lanes is None and self._nranks > 1 and any(
                self.policy.match(operation, dtype, self.role, self._raw, 1 << 62) for operation in range(3) for dtype in range(3)):
            # Local, and in the same order on all ranks: that of the groups that the program makes.
            self._lanes = [Lane(self, operation, self._enter()) for operation in range(3)]

    def find(self, operation: int, t: Tensor, numbers: int) -> tuple[Lane, Entry] | None:
        """The lane and the entry of a call of so many numbers; None: it goes as it is."""
        dtype = _COMPRESSED.get(t.dtype)
        if dtype is None or self._lanes is None or not numbers:
            return None
        entry = self.policy.match(operation, dtype, self.role, self._raw, numbers * t.element_size())
        return None if entry is None else (self._lanes[operation], entry)

    def passes(self, operation: str, size: int) -> None:
        """Counts a call of so many bytes that goes as it is."""
        passed = self._passed.setdefault(operation, [0, 0])
        passed[0] += 1
        passed[1] += size

    def abort(self, text: str) -> None:
        for lane in self._lanes or []:
            lane.abort(text)

    def close(self, seconds: float) -> None:
        self.policy.keep(self.stats())
        lanes, self._lanes, self._passed = self._lanes or [], None, {}
        for lane in lanes:
            lane.close(seconds)

    def stats(self) -> list[dict[str, Any]]:
        passed = [self._row(operation, *counted) for operation, counted in list(self._passed.items())]
        return [row for lane in self._lanes or [] for row in lane.stats()] + passed

    def _row(self, operation: str, calls: int, size: int) -> dict[str, Any]:
        share = (self._nranks - 1) / self._nranks
        sent = size * {"all_reduce": 2 * share, "send": 1.0}.get(operation, share)
        return {"group": self.name, "ranks": self._nranks, "role": ROLES[self.role], "operation": operation, "entry": None, "calls": calls,
                "plain": calls, "remembered": 0, "bytes": size, "dense_bytes": sent, "wire_bytes": sent, "ratio": 1.0 if sent else None,
                "seconds": None}


_COMPRESSED = {torch.float32: _lib.F32, torch.float16: _lib.F16, torch.bfloat16: _lib.BF16}
