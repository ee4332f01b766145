"""Lightning: the gradients of a trainer's model through gradcomp.

    trainer = lightning.Trainer(strategy="ddp", callbacks=[gradcomp.lightning.GradComp()], ...)

The strategies "ddp" and "fsdp", and ModelParallelStrategy where its model is sharded with fully_shard().
Without --gradcomp and GRADCOMP it does nothing and says so once.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from . import torch as _torch


class GradComp(Callback):
    """Attaches the model when fit() begins and gives it back when fit() has ended. Options are those of
    gradcomp.torch.attach().

    Lightning's checkpoints hold one state for all ranks with it (attach's state_dict(shared=True)), which
    training goes on from on any number of ranks. A sharded model's state is its ranks' own, and is not
    saved."""

    def __init__(self, **options: Any) -> None:
        if options.get("delay"):
            raise ValueError("GradComp(delay=...): averages that come late need drain(optimizer) before weights are saved or "
                             "compared, which only the program knows the place of: leave it out, or use "
                             "gradcomp.torch.attach(model, delay=...) in a loop of your own")
        self._options = options
        self._attachment: _torch.Attachment | None = None
        self._loaded: dict[str, Any] = {}

    @property
    def attachment(self) -> _torch.Attachment | None:
        """What attach() returned, for its stats(); None outside fit()."""
        return self._attachment

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        del pl_module
        self._attachment = _torch.attach(trainer.strategy.model, **self._options)
        self._take_up()

    def teardown(self, trainer: Any, pl_module: Any, stage: Any) -> None:
        del trainer, pl_module, stage
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.detach()

    def state_dict(self) -> dict[str, Any]:
        if not isinstance(self._attachment, _torch.Replicated):
            return {}
        return self._attachment.state_dict(shared=True)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Of a checkpoint, which may be read before or after fit() has begun."""
        self._loaded = state_dict
        self._take_up()

    def _take_up(self) -> None:
        if self._attachment is not None and self._loaded:
            self._attachment.load_state_dict(self._loaded)
            self._loaded = {}
