"""Counters of an attached model in TensorBoard or Weights & Biases:

    hook = gradcomp.torch.attach(model)
    hook.on_step(gradcomp.writers.TensorBoard(SummaryWriter(), every=10))
    hook.on_step(gradcomp.writers.WandB(wandb.init(project="p"), every=10))

Each takes what the program has made, on the rank that has it; neither package is needed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _lib

_SECONDS = ("encode_s", "exchange_s", "decode_s", "exposed_s")


class _Means:
    """Of the steps since the last time: what a step has sent and taken."""

    def __init__(self, every: int, prefix: str):
        self._every, self._prefix = _lib.whole("every", every, least=1), prefix
        self._last: dict[str, float] = {}

    def of(self, step: int, stats: Mapping[str, float]) -> dict[str, float]:
        """{name: value}; empty in steps of which nothing is to be written."""
        if step % self._every:
            return {}
        last, self._last = self._last, dict(stats)
        new = {name: value - last.get(name, 0) for name, value in stats.items()}
        steps = max(new["steps"], 1)
        values = {"wire_mb": new["wire_bytes"] / steps / 1e6, "dense_mb": new["dense_bytes"] / steps / 1e6}
        if new["dense_bytes"] > 0:
            values["ratio"] = new["wire_bytes"] / new["dense_bytes"]
        values.update({name[:-1] + "ms": 1e3 * new[name] / steps for name in _SECONDS})
        if new["error_steps"] > 0:
            values["error"] = stats["error_last"]
        values["nonfinite_steps"] = stats["nonfinite_steps"]
        return {self._prefix + name: value for name, value in values.items()}


class TensorBoard:
    """For on_step(): every so many steps writer.add_scalar(name, value, step), of torch.utils.tensorboard's SummaryWriter or
    one like it. Megabytes and milliseconds are means of a step; `error` is the share of the last one that stayed in error memory."""

    def __init__(self, writer: Any, every: int = 1, prefix: str = "gradcomp/"):
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(f"TensorBoard() takes a SummaryWriter, which has add_scalar(), not a {type(writer).__name__}")
        self._writer, self._means = writer, _Means(every, prefix)

    def __call__(self, step: int, stats: Mapping[str, float]) -> None:
        for name, value in self._means.of(step, stats).items():
            self._writer.add_scalar(name, value, step)


class WandB:
    """For on_step(): every so many steps run.log() of the same values. They are of the step that the program's own next
    run.log() ends, or with commit=True a step of their own."""

    def __init__(self, run: Any, every: int = 1, prefix: str = "gradcomp/", commit: bool = False):
        if not callable(getattr(run, "log", None)):
            raise TypeError(f"WandB() takes what wandb.init() returns, which has log(), not a {type(run).__name__}")
        self._run, self._commit, self._means = run, commit, _Means(every, prefix)

    def __call__(self, step: int, stats: Mapping[str, float]) -> None:
        values = self._means.of(step, stats)
        if values:
            self._run.log(values, commit=self._commit)
