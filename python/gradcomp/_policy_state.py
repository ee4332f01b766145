"""What the backend keeps under a policy, in checkpoints: backend.state_dict(), load_state_dict() and shared (doc/user/checkpoints.md).

A state is a dict of groups, each some bytes: a head, a JSON text that says what follows, and that. What is loaded is hostile until it has been
checked, before anything changes."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import torch

from . import _lib, _policy, _pytorch
from ._lib import Error
from ._policy import Coding, Saved, SavedGroup

_HEAD = struct.Struct("<16sIIQ")  # what it is, its version, the checksum of what follows that, bytes of the JSON text
_MAGIC, _VERSION = b"gradcomp backend", 1
_NONE, _OWN, _SHARED, _REFUSED = range(4)  # what a rank loads
_SAID = 512  # bytes by which ranks tell each other


def state_dict(shared: bool = False) -> dict[str, torch.Tensor]:
    """What the calls that a policy compresses are still owed, by group, between steps; empty without a policy. This rank's own state, which
    continues to the bit; with shared=True one for any number of ranks, the same on all ranks of a group, which call this together."""
    return {key: _pytorch.as_tensor(packed) for key, packed in _packed(shared).items()}


def load_state_dict(state: Any, strict: bool = True) -> None:
    """Takes up a state of either kind, all ranks together, each its own or the one that they share. When one cannot, none does. What is for a
    group that is not made yet waits for it. A group that the state has not is refused, or begins anew with strict=False.
    Without a policy this does nothing."""
    policies = _policy.in_force()
    if not policies:
        if not torch.distributed.is_initialized():
            raise Error(_lib.ERR_STATE, 'there is no process group yet: init_process_group("gradcomp") comes before load_state_dict()')
        return
    found: dict[str, SavedGroup] = {}
    problem: Error | None = None
    try:
        found = _read(state, strict)
    except Error as e:
        problem = e
    kind = _REFUSED if problem else _NONE if not found else _SHARED if all(saved.shared for saved in found.values()) else _OWN
    for policy in policies:
        _agree(policy, kind, str(problem or ""))
    if problem is not None:
        raise problem
    if not found:
        return
    for coding in _policy.codings():
        coding.take(found.pop(coding.key, None))
    _policy.awaited.clear()
    _policy.awaited.update(found)


class Shared:
    """state_dict(shared=True) and load_state_dict() under the names that torch.distributed.checkpoint looks for in an object. What it saves are
    bytes and no tensors, whose sizes a process that has just begun would have to know. All ranks call each together."""

    def state_dict(self) -> dict[str, bytes]:
        return _packed(True)

    def load_state_dict(self, state: Any) -> None:
        load_state_dict(state)


def _packed(shared: bool) -> dict[str, bytes]:
    found = {}
    for coding in _policy.codings():
        _check_idle(coding)
    for key, saved in _policy.awaited.items():
        if shared and not saved.shared:
            raise Error(_lib.ERR_STATE, f"group {key}: what has been loaded is rank {saved.rank}'s own, and waits for the group to be made: ranks "
                                        "can share a state once it is")
        found[key] = saved.packed
    for coding in _policy.codings():
        found[coding.key] = _pack(coding, shared)
    return found


def _check_idle(coding: Coding) -> None:
    for lane in coding.lanes or []:
        lane.check_idle()


def _pack(coding: Coding, shared: bool) -> bytes:
    lanes = [lane.save(shared) for lane in coding.lanes or []]
    head = json.dumps({"policy": coding.policy.text, "shared": shared, "rank": 0 if shared else coding.rank, "ranks": lanes[0].ranks,
                       "lanes": [[saved.rounds, [[*piece, len(data)] for piece, data in saved.pieces.items()]] for saved in lanes]}).encode()
    body = b"".join([struct.pack("<Q", len(head)), head, *(data for saved in lanes for data in saved.pieces.values())])
    return _HEAD.pack(_MAGIC, _VERSION, zlib.crc32(body), len(head)) + body[8:]


def _read(state: Any, strict: bool) -> dict[str, SavedGroup]:
    """By group, checked."""
    if _pytorch.is_empty(state):
        return {}
    if not isinstance(state, Mapping):
        raise Error(_lib.ERR_INVALID, f"{_pytorch.described(state)} is no state of the backend: give load_state_dict() what state_dict() returned")
    found = {str(key): _unpack(str(key), value) for key, value in state.items()}
    for coding in _policy.codings():
        _check_idle(coding)
        saved = found.get(coding.key)
        if saved is not None:
            coding.check(saved)
        elif strict:
            raise Error(_lib.ERR_MISMATCH, f"the state has no group {coding.key}; groups that it has: {', '.join(found)}. With strict=False that "
                                           "group begins anew")
    for key, saved in found.items():
        _policy.in_force()[0].check(key, saved)
    return found


def _unpack(key: str, value: Any) -> SavedGroup:
    data = bytes(value) if isinstance(value, (bytes, bytearray)) else _pytorch.as_bytes(value)
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise Error(_lib.ERR_INVALID, f"group {key}: {len(data)} bytes are no state of the backend: give load_state_dict() what state_dict() "
                                      "returned")
    _, version, checksum, length = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise Error(_lib.ERR_UNSUPPORTED, f"group {key}: the state has version {version}, this gradcomp reads {_VERSION}")
    if zlib.crc32(memoryview(data)[_HEAD.size - 8:]) != checksum:
        raise Error(_lib.ERR_INVALID, f"group {key}: the state of {len(data)} bytes is damaged (its checksum differs)")
    try:
        return _described(json.loads(data[_HEAD.size:_HEAD.size + length]), data, _HEAD.size + length)
    except (ValueError, TypeError, KeyError, IndexError) as e:
        raise Error(_lib.ERR_INVALID, f"group {key}: the state of {len(data)} bytes is damaged ({type(e).__name__}: {e})") from None


def _described(head: Any, data: bytes, at: int) -> SavedGroup:
    """The group of a head that is JSON, and of what is behind it. ValueError and its like for one that says what cannot be."""
    lanes = []
    for operation, (rounds, described) in zip(range(len(_policy.OPERATIONS)), head["lanes"]):
        known = _calls(operation, rounds)
        pieces = {}
        for kind, entry, slot, size in described:
            call = known.get(_number(slot))
            if kind not in ("coder", "reducer", "slot") or _number(size) > len(data) - at or (kind != "coder" and call is None):
                raise ValueError(f"{kind} {slot} of {size} bytes")
            if kind == "slot" and call is not None and size != 4 * (sum(call[3:]) or call[2]):
                raise ValueError(f"{size} bytes of {call}")
            pieces[kind, _number(entry), slot] = data[at:at + size]
            at += size
        lanes.append(Saved(_number(head["ranks"]), rounds, pieces))
    if at != len(data) or len(lanes) != len(_policy.OPERATIONS):
        raise ValueError(f"{len(data) - at} bytes are left of {len(lanes)} operations")
    return SavedGroup(bool(head["shared"]), _number(head["rank"]), _number(head["ranks"]), str(head["policy"]), lanes, data)


def _calls(operation: int, rounds: Any) -> dict[int, Any]:
    """By number, the calls that a lane knows."""
    found: dict[int, Any] = {}
    if not rounds:
        return found
    for first, calls in rounds["known"]:
        for number, call in enumerate(calls, _number(first)):
            if number in found or number >= rounds["next"]:
                raise ValueError(f"call {number} twice, or behind {rounds['next']}")
            found[number] = call
    for call in [*found.values(), *rounds["now"]]:
        dtype, mean, *sizes = call
        if dtype not in _policy.DTYPES or not isinstance(mean, bool) or (len(sizes) != 1 if operation == _policy.ALL_REDUCE else len(sizes) < 2):
            raise ValueError(f"call {call}")
        for size in sizes:
            _number(size)
    _number(rounds["next"])
    return found


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError(f"{value!r} where a number was to be")
    return value


def _agree(policy: _policy.Policy, kind: int, why: str) -> None:
    """Fails on all ranks of a job when one refuses its state, or loads one of another kind."""
    world = policy.job.world
    own, every = torch.zeros(_SAID, dtype=torch.uint8), torch.empty(policy.job.nranks, _SAID, dtype=torch.uint8)
    said = bytes([kind]) + why.encode()[:_SAID - 1]
    own[:len(said)] = _pytorch.as_tensor(said)
    world.allgather(own, every, [_SAID] * policy.job.nranks)
    kinds = every[:, 0].tolist()
    for rank in [r for r in range(len(kinds)) if kinds[r] == _REFUSED][:1]:
        if kind != _REFUSED:
            text = _pytorch.as_bytes(every[rank, 1:]).rstrip(b"\0").decode(errors="replace")
            raise Error(_lib.ERR_MISMATCH, f"rank {rank} on {policy.job.host(rank)} cannot load its state: {text}")
    for rank in range(len(kinds)):
        if kind != _REFUSED and kinds[rank] != kind:
            names = "no state", "a state of its own", "one that ranks share"
            raise Error(_lib.ERR_MISMATCH, f"rank {rank} on {policy.job.host(rank)} loads {names[kinds[rank]]}, this rank {names[kind]}: either all "
                                           "ranks load a shared one, or each its own")
