"""The step of an optimizer, which all ranks would take alike, shared among them where that is faster; LAMB and LARS, whose
steps are worth it most."""

from __future__ import annotations

import copy
import io
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from . import _lib
from .job import Group

_TRIED = 4  # steps of either kind that are timed first; the first of each is left out
_LOOK = 100  # shared steps between two looks at whether that still pays
_ALIGN = 16  # of a parameter in a message, in bytes


class ParallelOptimizer(Optimizer):
    """`optimizer` of torch.optim or like them, whose step each rank takes for a share of the parameters; the others' results
    are gathered, the same bits as without. Collective to make; parameters, gradients and steps are the same on all ranks of `group`.

    The first nine steps are timed, some whole on every rank and some shared, and the faster way is kept. Shares are cut by what
    parameters took. `reason` says what was found. While steps are shared a rank has the state of its own parameters alone:
    consolidate() before state_dict(), which is the optimizer's own. An optimizer whose step of one parameter depends on others is
    found out in the first steps, and not shared."""

    def __init__(self, optimizer: Optimizer, group: Group):
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"ParallelOptimizer() takes an optimizer that has been made, ParallelOptimizer(torch.optim.AdamW(...), group), not "
                            f"{optimizer!r}")
        if isinstance(optimizer, (ParallelOptimizer, torch.optim.LBFGS)):
            raise TypeError(f"a {type(optimizer).__name__} cannot be shared: " + (
                "it takes all parameters together" if isinstance(optimizer, torch.optim.LBFGS) else "it is already"))
        self.optimizer, self._group = optimizer, group
        self._begin()

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # of a copy that is not complete yet
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a ParallelOptimizer cannot be copied or saved: save what its state_dict() returns")

    def _begin(self) -> None:
        """Measures anew."""
        self._parameters: list[Tensor] = [p for g in self.optimizer.param_groups for p in g["params"] if p.requires_grad]
        places = sorted({str(p.device) for p in self._parameters})
        if len(places) != 1 or self._parameters[0].device.type not in ("cpu", "cuda"):
            raise _lib.Error(_lib.ERR_INVALID, f"parameters are on {' and '.join(places) or 'no device'}: have all in host memory, or all on one "
                                               "CUDA device")
        self._device = self._parameters[0].device
        self._bytes = [-(-p.numel() * p.element_size() // _ALIGN) * _ALIGN for p in self._parameters]
        layout = zlib.crc32(str([(tuple(p.shape), str(p.dtype)) for p in self._parameters]).encode())
        if len(set(self._each(float(layout)))) > 1:
            raise _lib.Error(_lib.ERR_MISMATCH, "parameters differ between ranks in number, shape or type: make the same model on all")
        self._stale = False  # the state of other ranks' parameters
        self._steps = 0  # that were shared since that was decided
        self._shared: bool | None = None  # None: not decided
        self._checked = False  # whether parameters may be stepped apart
        self._whole: list[float] = []  # seconds of the first steps, of the slowest rank
        self._parts: list[float] = []
        self._lately: list[float] = []  # seconds of the last shared steps, of this rank
        self._slow = [1.0] * self._group.nranks  # what a rank takes for the same work
        self._cost = [float(p.numel() + 2000) for p in self._parameters]
        self._cut()
        self.reason = "not decided yet" if self._group.nranks > 1 else "not shared: one rank"

    def _each(self, number: float) -> list[float]:
        """The number of every rank."""
        every = torch.empty(self._group.nranks, dtype=torch.float64)
        self._group.allgather(torch.tensor([number], dtype=torch.float64), every, [1] * self._group.nranks)
        return [float(n) for n in every]

    def _cut(self) -> None:
        """Deals the parameters out, the longest first, each to the rank that is done with it first."""
        load = [0.0] * self._group.nranks
        self._owner = [0] * len(self._parameters)
        for i in sorted(range(len(self._cost)), key=lambda i: (-self._cost[i], i)):
            done = [(has + self._cost[i]) * slow for has, slow in zip(load, self._slow)]
            self._owner[i] = done.index(min(done))
            load[self._owner[i]] += self._cost[i]
        of_rank = [[i for i, owner in enumerate(self._owner) if owner == r] for r in range(self._group.nranks)]
        self._order = [i for mine in of_rank for i in mine]
        self._counts = [sum(self._bytes[i] for i in mine) for mine in of_rank]
        self._own = torch.empty(self._counts[self._group.rank], dtype=torch.uint8, device=self._device)
        self._all = torch.empty(sum(self._counts), dtype=torch.uint8, device=self._device)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _alone(self, keep: Callable[[int], bool]) -> None:
        """The optimizer's step for those that keep() names by their place."""
        left = [(p, p.grad) for i, p in enumerate(self._parameters) if not keep(i)]
        try:
            for p, _ in left:
                p.grad = None
            self.optimizer.step()
        finally:
            for p, gradient in left:
                p.grad = gradient

    @torch.no_grad()
    def _gather(self) -> None:
        at = 0
        for i in self._order:
            if self._owner[i] == self._group.rank:
                p = self._parameters[i].detach().contiguous().reshape(-1).view(torch.uint8)
                self._own[at:at + p.numel()] = p
                at += self._bytes[i]
        self._group.allgather(self._own, self._all, self._counts)
        at = 0
        for i in self._order:
            p = self._parameters[i]
            if self._owner[i] != self._group.rank:
                p.copy_(self._all[at:at + p.numel() * p.element_size()].view(p.dtype).view(p.shape))
            at += self._bytes[i]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Collective."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._group.nranks == 1 or self._shared is False:
            self.optimizer.step()
        elif self._shared:
            self._share()
        else:
            self._try()
        return loss

    def _share(self) -> None:
        self._steps += 1
        begun = self._now() if self._steps % _LOOK > _LOOK - _TRIED or self._steps % _LOOK == 0 else None
        self._alone(lambda i: self._owner[i] == self._group.rank)
        self._stale = True
        self._gather()
        if begun is not None:
            self._lately.append(self._now() - begun)
        if self._steps % _LOOK == 0:
            took, self._lately = max(self._each(min(self._lately))), []
            if took > self._whole_time:
                self._decide(False, f"{self._whole_time * 1e3:.3g} ms whole, and {took * 1e3:.3g} ms as shares after {self._steps} steps")

    def _decide(self, shared: bool, why: str) -> None:
        if not shared:
            self.consolidate()
        self._shared, self.reason = shared, f"{'shared' if shared else 'not shared'}: {why}"

    def _try(self) -> None:
        """One of the first steps. What is decided is the same on all ranks."""
        if len(self._whole) == 1 and not self._checked:
            self._checked = True
            if min(self._each(float(self._separable()))) == 0:
                self._decide(False, f"the step of a {type(self.optimizer).__name__} for one parameter depends on others")
            return
        begun = self._now()
        if len(self._whole) < _TRIED:
            self.optimizer.step()
            every = self._each(self._now() - begun)
            self._slow = every if len(self._whole) <= 1 else [min(a, b) for a, b in zip(self._slow, every)]
            self._whole.append(max(every))
            return
        self._alone(lambda i: self._owner[i] == self._group.rank)
        self._stale, stepped = True, self._now()
        self._gather()
        took, own = max(self._each(self._now() - begun)), self._each(stepped - begun)
        self._parts.append(took)
        if len(self._parts) == 1:
            # What a rank's parameters took of a whole step there is what they cost, so that the next shares are more even.
            self.consolidate()
            load = [sum(c for c, owner in zip(self._cost, self._owner) if owner == r) for r in range(self._group.nranks)]
            self._cost = [c * own[owner] / self._slow[owner] / load[owner] for c, owner in zip(self._cost, self._owner)]
            self._cut()
        elif len(self._parts) == _TRIED:
            self._whole_time, took = min(self._whole[1:]), min(self._parts[1:])
            self._decide(took < self._whole_time, f"{self._whole_time * 1e3:.3g} ms whole, {took * 1e3:.3g} ms as {self._group.nranks} "
                                                  f"shares, of which the longest step is {max(own) * 1e3:.3g} ms; {sum(self._counts)} "
                                                  "bytes are gathered")

    def _separable(self) -> bool:
        """Takes a whole step, and one of the smallest parameter alone, whose result must be the same."""
        least = min((i for i, p in enumerate(self._parameters) if p.grad is not None), default=None, key=lambda i: self._bytes[i])
        if least is None or len(self._parameters) == 1:
            self.optimizer.step()
            return True
        p = self._parameters[least]
        gradient = p.grad
        assert gradient is not None

        def taken() -> list[Any]:
            return [p.detach().clone(), gradient.clone(), copy.deepcopy(self.optimizer.state.get(p, {})),
                    [{k: copy.deepcopy(v) for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups]]

        @torch.no_grad()
        def give(what: list[Any]) -> None:
            p.copy_(what[0])
            gradient.copy_(what[1])
            self._set(p, what[2])
            for g, options in zip(self.optimizer.param_groups, what[3]):
                g.update(options)

        before = taken()
        self.optimizer.step()
        after = taken()
        give(before)
        self._alone(lambda i: i == least)
        same = torch.equal(p.detach(), after[0])
        give(after)
        return same

    def _set(self, p: Tensor, state: dict[str, Any]) -> None:
        if state:
            self.optimizer.state[p] = state
        else:  # an optimizer without state has none for the parameter, not an empty one
            self.optimizer.state.pop(p, None)

    def _here(self, storage: Any, place: str) -> Any:
        """Numbers of another rank's GPU come to this one's; an optimizer may have some in host memory."""
        return storage if place == "cpu" else storage.cuda(self._device)

    def consolidate(self) -> None:
        """Collective: every rank gets all of the optimizer's state, as state_dict() needs."""
        if not self._stale:
            return
        out = io.BytesIO()
        torch.save([self.optimizer.state.get(p, {}) for p, owner in zip(self._parameters, self._owner) if owner == self._group.rank], out)
        own = torch.frombuffer(bytearray(out.getvalue()), dtype=torch.uint8)
        sizes = [int(n) for n in self._each(float(own.numel()))]
        every = torch.empty(sum(sizes), dtype=torch.uint8)
        self._group.allgather(own, every, sizes)
        for r, part in enumerate(every.split(sizes)):
            if r == self._group.rank:
                continue
            states = iter(torch.load(io.BytesIO(part.numpy().tobytes()), weights_only=True, map_location=self._here))
            for p, owner in zip(self._parameters, self._owner):
                if owner == r:
                    self._set(p, next(states))
        self._stale = False

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own, which it loads without this one, too."""
        if self._stale:
            raise _lib.Error(_lib.ERR_STATE, "each rank has the state of its own parameters: call consolidate() on all ranks, then state_dict()")
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """All ranks load the same."""
        self.optimizer.load_state_dict(state_dict)
        self._stale = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Collective; what was measured begins anew."""
        self.consolidate()
        self.optimizer.add_param_group(param_group)
        self._begin()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def __repr__(self) -> str:
        return f"ParallelOptimizer({self.optimizer!r}, {self.reason})"


class _Layerwise(Optimizer):
    """Steps of which each parameter's is scaled by its norms."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]):
        for name in ("lr", "weight_decay"):
            if defaults[name] < 0:
                raise ValueError(f"{name}={defaults[name]}: must be 0 or more")
        super().__init__(params, defaults)

    def _update(self, p: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, group)
        return loss


class LARS(_Layerwise):
    """SGD with momentum whose rate for each parameter of more than one dimension is lr * trust * |w| / (|g| + weight_decay |w|)
    (You et al. 2017, arXiv 1708.03888)."""

    def __init__(self, params: Iterable[Any], lr: float, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 0.001):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    def _update(self, p: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        update = gradient.add(p, alpha=group["weight_decay"]) if group["weight_decay"] else gradient
        if p.dim() > 1:
            weight, slope = float(p.norm()), float(gradient.norm())
            if weight and slope:
                update = update * (group["trust"] * weight / (slope + group["weight_decay"] * weight))
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        state["momentum_buffer"].mul_(group["momentum"]).add_(update)
        p.add_(state["momentum_buffer"], alpha=-group["lr"])


class LAMB(_Layerwise):
    """Adam whose step of each parameter is as long as lr times the parameter (You et al. 2020, arXiv 1904.00962)."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-6,
                 weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

    def _update(self, p: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        (one, two), state = group["betas"], self.state[p]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        state["step"] += 1
        state["exp_avg"].mul_(one).add_(gradient, alpha=1 - one)
        state["exp_avg_sq"].mul_(two).addcmul_(gradient, gradient, value=1 - two)
        spread = (state["exp_avg_sq"] / (1 - two**state["step"])).sqrt_().add_(group["eps"])
        update = (state["exp_avg"] / (1 - one**state["step"])).div_(spread)
        if group["weight_decay"]:
            update.add_(p, alpha=group["weight_decay"])
        weight, length = float(p.norm()), float(update.norm())
        p.add_(update, alpha=-group["lr"] * (weight / length if weight and length else 1.0))
