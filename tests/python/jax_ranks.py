"""One rank of jax.t (argv[1]: where the ranks meet): prints `ok NAME` or `not NAME WHY` for each thing that is tried. The last
rank kills itself at the end."""

import os
import signal
import sys

import folder_store
import jax
import jax.numpy as jnp
import numpy as np
from rank import say

import gradcomp
import gradcomp.jax
from gradcomp.jax import Reduction

JOB = folder_store.join(sys.argv[1])
RANK, SIZE = JOB.rank, JOB.nranks
SUM = SIZE * (SIZE + 1) / 2


def refused(name, words, call, *given):
    try:
        call(*given)
    except Exception as e:
        say(all(w in str(e) for w in words.split("|")), f"{name} is refused", repr(e))
    else:
        say(False, f"{name} is refused", "it was not")


def zeros(shape, dtype=np.float32):
    """Without a compilation for each shape, which jnp.zeros() takes."""
    return jnp.asarray(np.zeros(shape, dtype))


def numbers(shape, seed):
    return np.random.default_rng([seed, RANK]).normal(size=shape).astype(np.float32)


# Several trees in one function, of types and shapes that there are; large arrays; the same in a loop.
tree = {"b": zeros(5, jnp.bfloat16), "half": zeros((2, 3, 4), jnp.float16), "none": zeros((0, 3)), "one": zeros(()),
        "layers": [zeros((1500, 1000)), (zeros((7, 9)), None)]}
first, second = Reduction(tree, compressor="none"), Reduction(tree["layers"], compressor="none")
both = jax.jit(lambda t, x: (first(jax.tree.map(lambda a: a + x.astype(a.dtype), t)), second(jax.tree.map(lambda a: a - x, t["layers"]))))
for _ in range(3):
    up, down = both(tree, jnp.float32(RANK + 1))
right = all(np.allclose(np.asarray(a, np.float32), sign * SUM / SIZE, rtol=1e-2) and a.dtype == b.dtype and a.shape == b.shape
            for mean, like, sign in ((up, tree, 1), (down, tree["layers"], -1))
            for a, b in zip(jax.tree.leaves(mean), jax.tree.leaves(like), strict=True))
say(right, "two trees in a function, of three types, some without elements", jax.tree.map(lambda a: a.shape, up))
compiled = jax.jit(second)
given = compiled(tree["layers"])
say(not any(np.any(np.asarray(a)) for a in jax.tree.leaves(given)), "alone in a function")
given = second(tree["layers"])
say(not any(np.any(np.asarray(a)) for a in jax.tree.leaves((given, tree))), "outside of jit, and what is given stays as it is")


def added(a, _):
    a = second(jax.tree.map(lambda v: v + RANK, a))
    return a, a[1][0].sum()


last, sums = jax.jit(lambda x: jax.lax.scan(added, x, None, length=12))(tree["layers"])
say(np.allclose(np.asarray(sums), 63 * (SIZE - 1) / 2 * np.arange(1, 13)), "in a scan", sums)
stats = first.stats()
say(stats["steps"] == 3 and second.stats()["steps"] == 17, "counts steps", stats)
second.free()
refused("a call of what has been freed", "has been freed", second, tree["layers"])
refused("a compiled call of what has been freed", "has been freed", lambda: jax.block_until_ready(compiled(tree["layers"])))

# States.
shapes = {"w": zeros((40, 30)), "v": zeros(50)}
sparse = Reduction(shapes, compressor="topk:density=0.1", seed=7)
step = jax.jit(sparse)


def steps(begin, n):
    means = [step(jax.tree.map(lambda a: numbers(a.shape, begin + i), shapes)) for i in range(n)]
    return [np.asarray(leaf) for mean in means for leaf in jax.tree.leaves(mean)]


steps(0, 3)
state = sparse.save()
on = steps(10, 3)
sparse.load(state)
say(all(np.array_equal(a, b) for a, b in zip(on, steps(10, 3))), "continues from its own state to the bit")
shared = sparse.save(shared=True)
every = np.empty(SIZE * shared.size, np.uint8)
JOB.world.allgather(shared.copy(), every, [shared.size] * SIZE)
say(all(np.array_equal(part, shared) for part in every.reshape(SIZE, -1)), "the shared state is the same on all ranks")
sparse.load(shared)
refused("a state that is damaged", "load", sparse.load, np.zeros(9, np.uint8))
low = Reduction(shapes, compressor="powersgd:rank=2")
goal = jax.tree.map(lambda a: np.float32(np.random.default_rng(1).normal(size=a.shape)), shapes)


@jax.jit
def descend(x, noise):
    mean = low(jax.tree.map(lambda a, b, c: a - b + c, x, goal, noise))
    return jax.tree.map(lambda a, g: a - 0.1 * g, x, mean)


x = shapes
for i in range(150):
    x = descend(x, jax.tree.map(lambda a: np.float32(0.01) * numbers(a.shape, i), shapes))
far = max(float(np.abs(np.asarray(a) - b).max()) for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(goal)))
say(far < 0.1, "powersgd converges", far)

# Bad input.
refused("an integer", "n is int32|float32, bfloat16, float16", Reduction, {"n": zeros(3, jnp.int32)})
refused("a complex number", "complex64", Reduction, [zeros(3, jnp.complex64)])
refused("a number of Python's", "a leaf of the tree is a float", Reduction, {"a": 1.0})
refused("a tree of nothing", "no numbers", Reduction, {})
refused("a compressor that there is not", "nonsense", lambda: Reduction(shapes, compressor="nonsense"))
refused("another shape", "gradient w is float32[40,31]|float32[40,30]", step, {"w": zeros((40, 31)), "v": zeros(50)})
refused("another type", "gradient v is float16[50]", step, {"w": zeros((40, 30)), "v": zeros(50, jnp.float16)})
refused("another tree", "another Reduction", step, [zeros((40, 30)), zeros(50)])
refused("a derivative", "differentiated", jax.grad(lambda a: sparse({"w": a, "v": shapes["v"]})["w"].sum()), shapes["w"])
JOB.world.barrier()
if RANK == SIZE - 1:
    os.kill(os.getpid(), signal.SIGKILL)
refused("a step without a rank that died", f"rank {SIZE - 1}|died", lambda: jax.block_until_ready(step(shapes)))
refused("the next one", f"rank {SIZE - 1}", lambda: jax.block_until_ready(step(shapes)))
print("", end="", flush=True)
os._exit(0)  # JAX tells of each failed step once more at exit
