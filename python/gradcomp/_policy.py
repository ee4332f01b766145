"""What the backend does under a policy (gradcomp.h, doc/user/policies.md): which calls of a process group are compressed, and how.

A process group has a lane for each of all_reduce, all_gather and reduce_scatter: a group of the library's own, coders and reducers on
it, and a thread that carries its calls out one after another. What is made on the way (a coder, a reducer, connections) is made
there, so that no call waits for ranks that have not come to it yet, whatever order a program gives to those of several groups.

Error memory. A coder or reducer may add what earlier codes of a tensor lost only where the tensor is known to be the same. Nobody
says which one an all_reduce has: so the calls since the last step of an optimizer are compared with those of the steps before. A call
whose step has had the same sizes and types as exactly one of them is taken for the one at its place there, if all ranks take it so, for
which they exchange two numbers. The numbers that calls have go by the steps alone, so they are the same when a program runs again.

Memory goes into checkpoints by the name of its group, the operation, the entry and the call's number (_policy_state.py). What has been loaded
waits in its lane until a call makes the coder or reducer that it is for, which takes it up there, where all ranks are."""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from ctypes import byref, c_void_p
from typing import Any, NamedTuple
from typing import cast as typed

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


class Saved(NamedTuple):
    """What a state has of a lane."""
    ranks: int  # of its group
    rounds: dict[str, Any]
    pieces: dict[tuple[str, int, int], bytes]  # by ("coder", "reducer" or "slot"; entry; number of the call)


class SavedGroup(NamedTuple):
    """What a state has of a group, for each operation; `shared`: for any number of ranks; `packed`: as it came."""
    shared: bool
    rank: int
    ranks: int
    policy: str
    lanes: list[Saved]
    packed: bytes


awaited: dict[str, SavedGroup] = {}  # that have been loaded for groups that are not made yet


class Policy:
    """The policy of a job, what its groups are, and which entries were for one."""

    def __init__(self, text: str, job: _jobs.Job):
        self._handle = c_void_p()
        lib().call("policy_create", text.encode(), byref(self._handle))
        self.text = str(lib().policy_text(self._handle).decode())
        self.job = job
        self.entries = [self._entry(i) for i in range(lib().policy_entries(self._handle))]
        self._groups: dict[str, None] = {}
        self._order = next(_made)
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
        return int(lib().policy_role(name.encode(), nranks, self.job.nranks))

    def match(self, operation: int, dtype: int, role: int, name: bytes, size: int) -> Entry | None:
        call = _lib.PolicyCall(ctypes.sizeof(_lib.PolicyCall), operation, dtype, role, name, size)
        found = lib().policy_match(self._handle, byref(call))
        return self.entries[found] if found >= 0 else None

    def check(self, key: str, saved: SavedGroup) -> None:
        """Of a group's state that is to be loaded."""
        if saved.policy != self.text:
            raise Error(_lib.ERR_MISMATCH, f"group {key}: the state is of the policy '{saved.policy}', this job's is '{self.text}'")
        for lane in saved.lanes:
            for _, number, _ in lane.pieces:
                if number >= len(self.entries):
                    raise Error(_lib.ERR_INVALID, f"group {key}: the state is damaged (entry {number} of {len(self.entries)})")

    def meet(self, name: str, role: int, nranks: int) -> None:
        """There is such a group."""
        self._groups[f"{name} ({nranks} rank{'s' if nranks > 1 else ''}, {ROLES[role]})"] = None
        self._used |= {e.number for e in self.entries if e.roles >> role & 1 or e.name in (name, name.removeprefix("mesh_"))}

    def tell(self) -> None:
        """Says once, on one rank, which entries no group was for."""
        if self._told or self.job.rank:
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
        if not in_force():
            awaited.clear()

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


def in_force() -> list[Policy]:
    """The policies of this process, in the order in which its jobs were made."""
    return sorted((policy for policy in _all_policies if policy._handle), key=lambda policy: policy._order)


def codings() -> list[Coding]:
    """The groups that policies compress calls of, in the order in which the program has made them."""
    return sorted((c for policy in in_force() for c in policy.codings if c.lanes), key=lambda coding: coding.order)


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

    def call(self, number: int) -> tuple[Any, ...] | None:
        """The call of this number; None: no list has it any more."""
        for calls, first in self._known.items():
            if first <= number < first + len(calls):
                return typed("tuple[Any, ...]", calls[number - first])
        return None

    def numbered(self) -> list[tuple[int, tuple[Any, ...]]]:
        """All calls that are known, with their numbers."""
        return sorted((first + i, call) for calls, first in self._known.items() for i, call in enumerate(calls))

    def save(self, used: set[int]) -> dict[str, Any]:
        """Without the lists that have come once, so that no call of them is one of these numbers: DistributedDataParallel has other
        buckets in the first step of each process."""
        known = [[first, calls] for calls, first in self._known.items() if not used.isdisjoint(range(first, first + len(calls)))]
        return {"known": known, "next": self._next, "now": self._now}

    def load(self, saved: dict[str, Any]) -> None:
        self._known = {tuple(map(tuple, calls)): first for first, calls in saved["known"]}
        self._next, self._now, self._fits = saved["next"], [], list(self._known.items())
        for call in saved["now"]:
            self.place(tuple(call))

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
_made = itertools.count()  # policies and groups
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
        self._used: set[int] = set()  # numbers of calls that have come with one
        self._loaded: dict[tuple[str, int, int], bytes] = {}  # that no coder or reducer has taken up yet
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
        slot = self._slot(place, count)
        self._coder(entry).reduce_scatter(given, out, counts, scale, slot).wait()
        count.seconds += time.monotonic() - began

    def all_reduce(self, entry: Entry, place: int, numbers: Tensor, factor: float, scale: float) -> None:
        count, began = self._count(entry, numbers), time.monotonic()
        if factor != 1:
            numbers.mul_(factor)
        slot, flat = self._slot(place, count), numbers.view(-1)
        if self._gives_code(entry):
            counts = _shares(flat.numel(), self._nranks)
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

    def _slot(self, place: int, count: _Count) -> int | None:
        """The number that a call goes by."""
        slot = self._agreed(place)
        if slot is not None:
            count.remembered += 1
            self._used.add(slot)
        return slot

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
            mine = [piece for piece in self._loaded if piece[0] != "reducer" and piece[1] == entry.number]
            try:
                for kind, _, slot in mine:
                    if kind == "coder":
                        coder.load(self._loaded[kind, entry.number, slot])
                    else:
                        self._owe(coder, slot, self._loaded[kind, entry.number, slot])
            except Error:
                coder.free()
                raise
            for piece in mine:
                del self._loaded[piece]
            self._coders[entry.number] = coder
        return coder

    def _reduce(self, entry: Entry, slot: int, flat: Tensor, times: float) -> None:
        # Before, so that the mean over ranks of what is owed is in units of the result, whatever their number.
        if times != 1:
            flat.mul_(times)
        self._kept(entry, slot, flat.numel(), flat.dtype).average(flat)

    def _kept(self, entry: Entry, slot: int, n: int, dtype: torch.dtype) -> _Kept:
        kept = self._reducers.get((entry.number, slot))
        if kept is None:
            kept, piece = _Kept(self._group, entry, f"{self._coding.name} {slot}", n, dtype), ("reducer", entry.number, slot)
            try:
                if piece in self._loaded:
                    kept.reducer.load(self._loaded[piece])
            except Error:
                kept.reducer.free()
                raise
            self._loaded.pop(piece, None)
            self._reducers[entry.number, slot] = kept
        return kept

    # Checkpoints.

    def check_idle(self) -> None:
        with self._mutex:
            if self._waiting:
                raise Error(_lib.ERR_STATE, f"group {self._coding.name}: {OPERATIONS[self.operation]} is in flight: wait for it before a state "
                                            "is saved or loaded")

    def save(self, shared: bool) -> Saved:
        """With `shared` all ranks call it together, and get the same."""
        if self._rounds is None and shared:
            return Saved(self._nranks, {}, {})
        rounds = {} if self._rounds is None else self._rounds.save(self._used)
        if shared:
            self._check_alike(rounds)
            self._take_up()
            return Saved(self._nranks, rounds, {**self._owed(), **self._states(shared)})
        waiting = {piece: data for piece, data in self._loaded.items() if piece[0] == "coder" or self._call(piece[2]) is not None}
        coders = {("coder", number, 0): coder.save() for number, coder in self._coders.items()}
        return Saved(self._nranks, rounds, {**waiting, **coders, **self._states(shared)})

    def take(self, saved: Saved) -> None:
        """Begins anew, with what a state has. Local."""
        for number, coder in self._coders.items():
            self._counts.setdefault(number, _Count()).wire += coder.stats()["wire_bytes"]
            coder.free()
        for (number, _), kept in self._reducers.items():
            self._counts.setdefault(number, _Count()).wire += kept.reducer.stats()["wire_bytes"]
            kept.reducer.free()
        self._coders, self._reducers, self._loaded = {}, {}, dict(saved.pieces)
        if self._rounds is not None:
            self._rounds.load(saved.rounds or {"known": [], "next": 0, "now": []})
            self._used = {number for number, _ in self._rounds.numbered()}

    def _states(self, shared: bool) -> dict[tuple[str, int, int], bytes]:
        return {("reducer", number, slot): kept.reducer.save(shared) for (number, slot), kept in sorted(self._reducers.items())
                if self._call(slot) is not None}

    def _check_alike(self, rounds: dict[str, Any]) -> None:
        """Ranks share a state of calls that they mean alike."""
        own = zlib.crc32(repr((rounds, sorted(self._loaded), sorted(self._coders), sorted(self._reducers))).encode())
        if self._agreed(own) is None:
            raise Error(_lib.ERR_STATE, f"group {self._coding.name}: its ranks know other calls of {OPERATIONS[self.operation]}, so that they share "
                                        "no state: save each rank's own, state_dict()")

    def _take_up(self) -> None:
        """Makes what loaded pieces are for."""
        for kind, number, slot in sorted(self._loaded):
            entry, call = self._coding.policy.entries[number], self._call(slot)
            if kind != "reducer":
                self._coder(entry)
            elif call is not None:
                self._kept(entry, slot, call[2], DTYPES[call[0]])

    def _call(self, slot: int) -> tuple[Any, ...] | None:
        return None if self._rounds is None else self._rounds.call(slot)

    def _owed(self) -> dict[tuple[str, int, int], bytes]:
        """What the result of each call is owed, of coders: the sum over ranks."""
        found = {}
        calls = [] if self._rounds is None else self._rounds.numbered()
        for number, coder in sorted(self._coders.items()):
            for slot, (_, mean, *_sizes) in calls:
                kept = coder.read_slot(slot)
                numbers = torch.frombuffer(kept, dtype=torch.float32) if kept else torch.empty(0)
                for part in numbers.split(1 << 20):
                    exact = part.double()
                    self._sum(exact)
                    part.copy_(exact.div_(self._nranks) if mean else exact)
                if kept:
                    found["slot", number, slot] = bytes(kept)
        return found

    def _owe(self, coder: Coder, slot: int, owed: bytes) -> None:
        """Of what a result is owed each rank has the same part."""
        call = self._call(slot)
        if call is None:
            return
        _, mean, *sizes = call
        n, numbers = self._nranks, torch.frombuffer(bytearray(owed), dtype=torch.float32)
        if self.operation == ALL_REDUCE:
            counts = _shares(sizes[0], n)
        else:
            counts = sizes[1:] if len(sizes) > 2 else [sizes[0]] * n
        coder.write_slot(slot, counts, numbers if mean else numbers.double().div_(n).float())

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


def _shares(n: int, nranks: int) -> list[int]:
    return [n // nranks + (r < n % nranks) for r in range(nranks)]


class _Kept:
    """A reducer for an all_reduce that recurs. Its numbers are a matrix, as square as powers of two allow, and what is left over."""

    def __init__(self, group: Group, entry: Entry, name: str, n: int, dtype: torch.dtype):
        columns = 1 << max(0, (n.bit_length() - 1) // 2)
        rows = n // columns
        parts = [(name, (rows, columns))] + ([(f"{name} rest", (n % columns,))] if n % columns else [])
        self._offsets = [0, rows * columns * dtype.itemsize][:len(parts)]
        self.reducer = Reducer(group, [(part, shape, dtype) for part, shape in parts], compressor=entry.spec,
                               collective=entry.collective)

    def average(self, flat: Tensor) -> None:
        for i, offset in enumerate(self._offsets):
            self.reducer.ready(i, flat.data_ptr() + offset)
        self.reducer.wait()


class Coding:
    """What a process group has for its calls that a policy compresses. `left` is called once for each of the library's groups that
    is gone."""

    def __init__(self, policy: Policy, job: _jobs.Job, ranks: Sequence[int], enter: Callable[[], c_void_p], left: Callable[[], None]):
        self.policy, self.job, self.left, self._nranks, self._enter = policy, job, left, len(ranks), enter
        self.rank = list(ranks).index(job.rank)
        self.order, self._first = next(_made), ranks[0]
        self.name, self.role, self._raw = "", 0, b""
        self.key = ""  # in states
        self.lanes: list[Lane] | None = None
        self._passed: dict[str, list[int]] = {}  # by operation: calls, bytes
        policy.codings.add(self)

    def named(self, description: str, label: str) -> None:
        """PyTorch says what the group is for when it has made it; nothing has been sent on it then. `label`: of one that nobody has
        described."""
        self.name = label if description == "undefined" else description
        self._raw = self.name.encode()
        self.role = self.policy.role(description, self._nranks)
        self.policy.meet(self.name, self.role, self._nranks)
        if self.lanes is None and self._nranks > 1 and any(
                self.policy.match(operation, dtype, self.role, self._raw, 1 << 62) for operation in range(3) for dtype in range(3)):
            # Local, and in the same order on all ranks: that of the groups that the program makes.
            self.lanes = [Lane(self, operation, self._enter()) for operation in range(3)]
            self.key = self._free_key()
            if self.key in awaited:
                self.check(awaited[self.key])
                self.take(awaited.pop(self.key))

    def _free_key(self) -> str:
        """The group's name in states: the same when the program runs again, on any number of ranks."""
        of = self.name if self._nranks == self.job.nranks else f"{self.name}@{self._first}"
        taken = {coding.key for coding in codings()}
        return next(key for i in itertools.count(1) if (key := of if i == 1 else f"{of}#{i}") not in taken)

    def check(self, saved: SavedGroup) -> None:
        """Of a state that is to be loaded."""
        if not saved.shared and (saved.rank, saved.ranks) != (self.rank, self._nranks):
            raise Error(_lib.ERR_MISMATCH, f"group {self.key}: the state is of rank {saved.rank} of {saved.ranks}, this is rank {self.rank} of "
                                           f"{self._nranks}: save state_dict(shared=True), which any number of ranks loads")

    def take(self, saved: SavedGroup | None) -> None:
        for lane in self.lanes or []:
            found = saved.lanes[lane.operation] if saved is not None else None
            if found is not None and found.ranks != self._nranks and lane.operation == REDUCE_SCATTER:
                if found.pieces and not self.rank:
                    _log.warn(f"group {self.key}: what its reduce_scatters owed on {found.ranks} ranks is of no use on {self._nranks}, which "
                              "share other parts: they begin anew")
                found = None
            lane.take(found or Saved(self._nranks, {}, {}))

    def find(self, operation: int, t: Tensor, numbers: int) -> tuple[Lane, Entry] | None:
        """The lane and the entry of a call of so many numbers; None: it goes as it is."""
        dtype = _COMPRESSED.get(t.dtype)
        if dtype is None or self.lanes is None or not numbers:
            return None
        entry = self.policy.match(operation, dtype, self.role, self._raw, numbers * t.element_size())
        return None if entry is None else (self.lanes[operation], entry)

    def passes(self, operation: str, size: int) -> None:
        """Counts a call of so many bytes that goes as it is."""
        passed = self._passed.setdefault(operation, [0, 0])
        passed[0] += 1
        passed[1] += size

    def abort(self, text: str) -> None:
        for lane in self.lanes or []:
            lane.abort(text)

    def close(self, seconds: float) -> None:
        self.policy.keep(self.stats())
        lanes, self.lanes, self._passed = self.lanes or [], None, {}
        for lane in lanes:
            lane.close(seconds)

    def stats(self) -> list[dict[str, Any]]:
        passed = [self._row(operation, *counted) for operation, counted in list(self._passed.items())]
        return [row for lane in self.lanes or [] for row in lane.stats()] + passed

    def _row(self, operation: str, calls: int, size: int) -> dict[str, Any]:
        share = (self._nranks - 1) / self._nranks
        sent = size * {"all_reduce": 2 * share, "send": 1.0}.get(operation, share)
        return {"group": self.name, "ranks": self._nranks, "role": ROLES[self.role], "operation": operation, "entry": None, "calls": calls,
                "plain": calls, "remembered": 0, "bytes": size, "dense_bytes": sent, "wire_bytes": sent, "ratio": 1.0 if sent else None,
                "seconds": None}


_COMPRESSED = {torch.float32: _lib.F32, torch.float16: _lib.F16, torch.bfloat16: _lib.BF16}
DTYPES = {str(dtype): dtype for dtype in _COMPRESSED}
