"""Keras 3: an optimizer that steps with the mean of gradients over the ranks of a job, on any of Keras's backends.

    keras.utils.set_random_seed(0)                        # the same weights on all ranks
    model.compile(gradcomp.keras.DistributedOptimizer(keras.optimizers.Adam()), loss="mse")
    model.fit(my_part_of_the_data, callbacks=[gradcomp.keras.Checkpoint("run.keras")])

fit() and loops of one's own work as they do with the optimizer within. On JAX gradients are reduced within
the compiled step, and on TensorFlow within its graph, which jit_compile=True does not allow; on PyTorch
between the backward pass and the step.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from . import _lib
from .job import Reducer, at_exit
from .job import world as world

if TYPE_CHECKING:
    from .jax import Reduction

_OPTIONS = ("compressor", "collective", "bucket_bytes", "seed", "schedule")


@keras.saving.register_keras_serializable("gradcomp")
class DistributedOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """`optimizer` steps with the mean over ranks. Collective to build, which fit() does; all ranks make as many steps.

    `compressor`, `collective` and `schedule` are SPECs in place of the job's. Variables are of float32, bfloat16 or float16; any
    other type is refused. Gradient clipping, moving averages and the like are the optimizer's within; a LossScaleOptimizer is
    that within, too."""

    def __init__(self, optimizer: Any, compressor: str | None = None, collective: str | None = None, bucket_bytes: int = 0,
                 seed: int = 0, schedule: str | None = None, name: str | None = None):
        optimizer = keras.optimizers.get(optimizer)
        if isinstance(optimizer, DistributedOptimizer):
            raise TypeError("the optimizer within is a DistributedOptimizer already: one of them reduces")
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = optimizer
        self._options = dict(zip(_OPTIONS, (compressor, collective, bucket_bytes, seed, schedule)))
        self._mean: Any = None
        self._kept: Any = None  # the steps that had been taken at keep(), and the state
        self._loaded: Any = None  # the state of a file, until build()

    def __setattr__(self, name: str, value: Any) -> None:
        # A LossScaleOptimizer does this to what it wraps; model.compile() makes one for mixed_float16.
        if name == "loss_scale_factor" and hasattr(self, "inner_optimizer"):
            raise TypeError("a LossScaleOptimizer around a DistributedOptimizer leaves out steps that other ranks take: make it "
                            "DistributedOptimizer(LossScaleOptimizer(...)), and compile(..., auto_scale_loss=False)")
        super().__setattr__(name, value)

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        for v in variables:
            if _dtype(v) not in ("float32", "bfloat16", "float16"):
                raise _lib.Error(_lib.ERR_UNSUPPORTED, f"variable {v.path} is {_dtype(v)}: gradients are reduced as float32, bfloat16, float16; "
                                                       "convert it, or keep it from training (trainable=False)")
        super().build(variables)
        self.inner_optimizer.build(variables)
        self._mean = _MEANS[keras.backend.backend()](variables, self._options)
        if self._loaded is not None:
            self._mean.load(self._loaded)
            self._loaded = None

    @property
    def variables(self) -> Any:
        return self.inner_optimizer.variables

    def apply(self, grads: list[Any], trainable_variables: Any = None) -> None:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            self.build(trainable_variables)
        self.inner_optimizer.apply(self._reduced(grads, trainable_variables), trainable_variables)

    def stateless_apply(self, optimizer_variables: list[Any], grads: list[Any], trainable_variables: list[Any]) -> Any:
        return self.inner_optimizer.stateless_apply(optimizer_variables, self._reduced(grads, None), trainable_variables)

    def _reduced(self, grads: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
        """Their means. All that the optimizer was built for is reduced: what has no gradient here counts as 0, and stays without."""
        if not self.built:
            raise ValueError("the optimizer is not built: call build(variables), or give apply() the variables")
        known = self._trainable_variables
        place = {id(v): i for i, v in enumerate(known)}
        for v in variables or ():
            if id(v) not in place:
                raise ValueError(f"variable {v.path} is unknown: the optimizer was built for {len(known)} others; make one for each model")
        at = range(len(known)) if variables is None else [place[id(v)] for v in variables]
        if len(grads) != len(at):
            raise ValueError(f"{len(grads)} gradients for {len(at)} variables")
        given = {i: g for i, g in zip(at, grads) if g is not None}
        means = self._mean([given[i] if i in given else keras.ops.zeros(v.shape, _dtype(v)) for i, v in enumerate(known)])
        return [None if g is None else means[i] for i, g in zip(at, grads)]

    def stats(self) -> dict[str, float]:
        """The reducer's counters; none before build()."""
        return {} if self._mean is None else dict(self._mean.stats())

    def keep(self) -> None:
        """Collective, between steps: what compression holds back goes along with the next model.save(), which one rank calls.
        A model that is saved without, or after more steps, has nothing of it."""
        if self._mean is None:
            raise _lib.Error(_lib.ERR_STATE, "keep() before the optimizer is built: there is nothing to keep yet")
        state = self._mean.save(shared=True)
        self._kept = (self.stats()["steps"], state)

    def save_own_variables(self, store: Any) -> None:
        """Those of the optimizer within are saved as its own."""
        if self._kept is not None and self._kept[0] == self.stats()["steps"]:
            store["gradcomp"] = self._kept[1]

    def load_own_variables(self, store: Any) -> None:
        """All ranks load together, any number of them."""
        if "gradcomp" in store.keys():
            state = np.asarray(store["gradcomp"])
            if self._mean is None:
                self._loaded = state
            else:
                self._mean.load(state)

    @property
    def learning_rate(self) -> Any:
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> Any:
        return self.inner_optimizer.iterations

    def scale_loss(self, loss: Any) -> Any:
        return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list: list[Any]) -> None:
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "optimizer": keras.saving.serialize_keras_object(self.inner_optimizer), **self._options}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> DistributedOptimizer:
        config = dict(config)
        return cls(keras.saving.deserialize_keras_object(config.pop("optimizer"), custom_objects=custom_objects), **config)


class Checkpoint(keras.callbacks.Callback):  # type: ignore[misc]
    """The model in one file after every `epochs` epochs, written by rank 0, with what compression still owes."""

    def __init__(self, path: str, epochs: int = 1):
        super().__init__()
        self._path, self._epochs = path, _lib.whole("epochs", epochs, least=1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if (epoch + 1) % self._epochs == 0:
            self.model.optimizer.keep()
            if world().rank == 0:
                self.model.save(self._path)


def broadcast(model: Any, root: int = 0) -> None:
    """Collective: every weight of the model, and of its optimizer where that is built, becomes what it is on rank `root`."""
    optimizer = getattr(model, "optimizer", None)
    for v in [*model.weights, *(optimizer.variables if optimizer is not None else [])]:
        value = keras.ops.convert_to_numpy(v.value)
        bits = value.reshape(-1).copy().view(np.uint8)
        world().broadcast(bits, root)
        v.assign(bits.view(value.dtype).reshape(v.shape))


def _dtype(variable: Any) -> str:
    return str(keras.backend.standardize_dtype(variable.dtype))


def _of_jax(variables: Sequence[Any], options: dict[str, Any]) -> Reduction:
    import jax

    from .jax import Reduction

    return Reduction([jax.ShapeDtypeStruct(tuple(v.shape), _dtype(v)) for v in variables], names=[v.path for v in variables], **options)


class _Host:
    """Means of copies in host memory."""

    def __init__(self, variables: Sequence[Any], options: dict[str, Any]) -> None:
        self._types = [(v.path, _dtype(v)) for v in variables]
        self._reducer = Reducer(world(), [(v.path, tuple(v.shape), _dtype(v)) for v in variables], None, **options)
        self._end = weakref.finalize(self, self._reducer.free)
        self._end.atexit = False  # at exit: _leave()
        _live.add(self)

    def _check(self, gradients: Sequence[Any]) -> None:
        for (path, own), g in zip(self._types, gradients):
            if _dtype(g) != own:
                raise _lib.Error(_lib.ERR_MISMATCH, f"the gradient of {path} is {_dtype(g)}, and the variable is {own}: cast it")

    def _reduce(self, addresses: Sequence[int]) -> None:
        for i in reversed(range(len(addresses))):
            self._reducer.ready(i, addresses[i])
        self._reducer.wait()

    def save(self, shared: bool) -> Any:
        return np.frombuffer(self._reducer.save(shared), np.uint8)

    def load(self, state: Any) -> None:
        self._reducer.load(state.astype(np.uint8).tobytes())

    def stats(self) -> dict[str, float]:
        return self._reducer.stats()


class _OfTorch(_Host):
    def __init__(self, variables: Sequence[Any], options: dict[str, Any]) -> None:
        import torch

        super().__init__(variables, options)
        self._uncompiled = torch.compiler.disable(self._means)

    def __call__(self, gradients: Sequence[Any]) -> Any:
        return self._uncompiled(gradients)

    def _means(self, gradients: Sequence[Any]) -> list[Any]:
        self._check(gradients)
        copies = [g.detach().to("cpu", copy=True).contiguous() for g in gradients]
        self._reduce([c.data_ptr() for c in copies])
        return [c.to(g.device) for c, g in zip(copies, gradients)]


class _OfTensorFlow(_Host):
    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        import tensorflow as tf

        dense = [tf.convert_to_tensor(g) for g in gradients]  # those of embeddings are sparse
        self._check(dense)
        # NumPy has no bfloat16 of TensorFlow's.
        bits = [tf.bitcast(g, tf.uint16) if g.dtype == tf.bfloat16 else g for g in dense]
        means = tf.numpy_function(self._means, bits, [b.dtype for b in bits])
        for mean, g in zip(means, dense):
            mean.set_shape(g.shape)
        return [tf.bitcast(mean, tf.bfloat16) if g.dtype == tf.bfloat16 else mean for mean, g in zip(means, dense)]

    def _means(self, *gradients: Any) -> list[Any]:
        copies = [np.array(g, order="C") for g in gradients]
        self._reduce([c.ctypes.data for c in copies])
        return copies


_MEANS: dict[str, Any] = {"jax": _of_jax, "torch": _OfTorch, "tensorflow": _OfTensorFlow}
_live: weakref.WeakSet[_Host] = weakref.WeakSet()


def _leave(failed: BaseException | None) -> None:
    for host in list(_live):
        if failed is None and host._end.detach():
            host._reducer.free()


at_exit(_leave)
