"""One rank of keras.t (argv[1]: where the ranks meet; argv[2]: yes for all that is tried, else what is not of fit() is left out):
prints `ok NAME` or `not NAME WHY` for each thing. The last rank kills itself at the end."""

import os
import signal
import sys
import warnings

import folder_store
import keras
import numpy as np
from keras.optimizers import SGD, LossScaleOptimizer
from rank import say

import gradcomp.keras
from gradcomp.keras import DistributedOptimizer

JOB = folder_store.join(sys.argv[1])
RANK, SIZE = JOB.rank, JOB.nranks
MEAN = (SIZE + 1) / 2  # of rank + 1
warnings.simplefilter("ignore")  # Keras tells of variables without gradients


def refused(name, words, call, *given, **named):
    try:
        call(*given, **named)
    except Exception as e:
        say(all(w in str(e) for w in words.split("|")), f"{name} is refused", repr(e))
    else:
        say(False, f"{name} is refused", "it was not")


def values(variables):
    return [keras.ops.convert_to_numpy(keras.ops.cast(v, "float32")) for v in variables]


def alike(these, those):
    return all(np.array_equal(a, b) for a, b in zip(these, those, strict=True))


def network():
    return keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(1)])


# fit(), a checkpoint, and what is loaded of it.
keras.utils.set_random_seed(RANK)
points = np.random.default_rng(RANK).normal(size=(512, 8)).astype(np.float32)
goal = np.sin(points.sum(1, keepdims=True) / 2)
model = network()
model.compile(DistributedOptimizer(keras.optimizers.Adam(0.01), compressor="topk:density=0.2", seed=3), loss="mse")
begun = values(model.weights)
gradcomp.keras.broadcast(model)
own = values(model.weights)
say(alike(begun, own) == (RANK == 0), "broadcast() gives all ranks the weights of rank 0")
path = os.path.join(sys.argv[1], "model.keras")
past = model.fit(points, goal, batch_size=64, epochs=10, verbose=0, callbacks=[gradcomp.keras.Checkpoint(path, epochs=2)])
say(past.history["loss"][-1] < 0.3 * past.history["loss"][0], "topk converges in fit()", past.history["loss"])
every = np.empty((SIZE, 321), np.float32)
JOB.world.allgather(np.concatenate([v.ravel() for v in values(model.weights)]), every, [321] * SIZE)
say(alike(every, [every[0]] * SIZE), "weights are the same on all ranks")
say(model.optimizer.stats()["steps"] == 80, "counts steps", model.optimizer.stats())
model.optimizer.keep()
JOB.world.barrier()
loaded = keras.saving.load_model(path)
optimizer = loaded.optimizer
say(alike(values(loaded.weights), values(model.weights)) and alike(values(optimizer.variables), values(model.optimizer.variables)),
    "a loaded model has the weights, and the optimizer's state")
optimizer.keep()
say(type(optimizer.inner_optimizer).__name__ == "Adam" and optimizer.get_config()["compressor"] == "topk:density=0.2"
    and alike([optimizer._kept[1]], [model.optimizer._kept[1]]), "... its settings, and what compression held back")
loaded.fit(points, goal, batch_size=64, epochs=2, verbose=0)
say(loaded.optimizer.iterations == 96 and loaded.optimizer.learning_rate == model.optimizer.learning_rate, "... and trains on")


# apply(), as loops of one's own call it.
def applied(optimizer, dtype="float32", scale=1.0, missing=None, stateless=False):
    """What a step makes of three variables of zeros, whose gradients are rank + 1; `stateless` as JAX has it."""
    variables = [keras.Variable(np.zeros(shape), dtype=dtype, name=f"v{i}") for i, shape in enumerate([(3, 4), (5,), ()])]
    gradients = [None if i == missing else keras.ops.full(v.shape, scale * (RANK + 1), dtype=dtype) for i, v in enumerate(variables)]
    if stateless:
        optimizer.build(variables)
        variables, _ = optimizer.stateless_apply([v.value for v in optimizer.variables], gradients, [v.value for v in variables])
    else:
        optimizer.apply(gradients, variables)
    return [float(v.min()) for v in values(variables)]


def others():
    """What is not of fit()."""
    say(applied(DistributedOptimizer(SGD(1.0))) == [-MEAN] * 3, "apply()")
    say(applied(DistributedOptimizer(SGD(2.0)), missing=1) == [-2 * MEAN, 0, -2 * MEAN], "a variable without a gradient")
    for kind in ("bfloat16", "float16"):
        say(applied(DistributedOptimizer(SGD(1.0)), kind) == [-MEAN] * 3, kind)
    scaled = DistributedOptimizer(LossScaleOptimizer(SGD(1.0), initial_scale=8.0))
    say(applied(scaled, scale=8.0, stateless=keras.backend.backend() == "jax") == [-MEAN] * 3, "a loss scale within")
    say(applied(DistributedOptimizer(SGD(1.0, clipvalue=1.0))) == [-1.0] * 3, "clipping is that of the mean")

    # Bad input.
    refused("a loss scale around it", "DistributedOptimizer(LossScaleOptimizer", LossScaleOptimizer, DistributedOptimizer("sgd"))
    refused("one in another", "already", DistributedOptimizer, DistributedOptimizer("sgd"))
    refused("an optimizer that there is not", "nonsense", DistributedOptimizer, "nonsense")
    refused("a compressor that there is not", "nonsense", applied, DistributedOptimizer("sgd", compressor="nonsense"))
    refused("a type that is not reduced", "v0|float64|trainable=False", applied, DistributedOptimizer("sgd"), "float64")
    refused("keep() before there is anything", "before", DistributedOptimizer("sgd").keep)
    refused("apply() without variables", "not built", DistributedOptimizer("sgd").apply, [np.zeros(3)])
    refused("a variable of another model", "unknown", applied, model.optimizer)
    refused("too few gradients", "1 gradients for 4", model.optimizer.apply, [np.zeros(3)])
    refused("checkpoints every 0 epochs", "epochs=0", gradcomp.keras.Checkpoint, path, epochs=0)


if sys.argv[2] == "yes":
    others()
JOB.world.barrier()
if RANK == SIZE - 1:
    os.kill(os.getpid(), signal.SIGKILL)
refused("fit() without a rank that died", f"rank {SIZE - 1}|died",  # JAX raises where a number is looked at
        lambda: [float(x) for x in model.fit(points, goal, batch_size=64, epochs=2, verbose=0).history["loss"]])
os._exit(0)  # JAX tells of each failed step once more at exit
