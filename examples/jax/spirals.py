#!/usr/bin/env python3
"""A small network in JAX that tells two spirals apart. The ranks of a job share every batch.

    gradcomp run -n 2 --gradcomp=topk:density=0.05 python3 spirals.py
    srun --mpi=pmix -N4 --gradcomp=powersgd:rank=2 python3 spirals.py
"""

import argparse
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradcomp.jax


def spirals(n: int) -> tuple[np.ndarray, np.ndarray]:
    """n points of two spirals, and which of them each is on: -1 or 1."""
    draw = np.random.default_rng(0)
    turn, side = 1 + 8 * np.sqrt(draw.random(n)), draw.choice([-1.0, 1.0], n)
    points = (side * turn * [np.cos(turn), np.sin(turn)]).T / 9 + draw.normal(0, 0.01, (n, 2))
    return points.astype(np.float32), side.astype(np.float32)


def network(width: int) -> Any:
    sizes = [2, width, width, 1]
    draw = np.random.default_rng(0)
    return [{"bias": np.zeros(o, np.float32), "weight": np.float32(draw.normal(size=(i, o)) * (4 if i == 2 else 1.4) / i**0.5)}
            for i, o in zip(sizes, sizes[1:])]


def loss(params: Any, points: jax.Array, side: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        points = jnp.tanh(points @ layer["weight"] + layer["bias"])
    out = (points @ params[-1]["weight"] + params[-1]["bias"])[:, 0]
    return jnp.logaddexp(0, -side * out).mean()


def main() -> None:
    p = argparse.ArgumentParser(description="two spirals in JAX, data-parallel")
    p.add_argument("--steps", type=int, default=1000)
    p.add_argument("--batch", type=int, default=64, help="points of a rank in a step (default 64)")
    p.add_argument("--width", type=int, default=64, help="units of each hidden layer (default 64)")
    p.add_argument("--save", help="a checkpoint to write")
    p.add_argument("--resume", help="a checkpoint to go on from, of any number of ranks")
    args = p.parse_args()

    points, side = spirals(2048)
    params = network(args.width)  # the same on all ranks
    velocity = jax.tree.map(np.zeros_like, params)
    reduce = gradcomp.jax.Reduction(params)
    rank, nranks = reduce.group.rank, reduce.group.nranks
    leaves, tree = jax.tree.flatten((params, velocity))
    if args.resume:
        with np.load(args.resume) as saved:
            params, velocity = jax.tree.unflatten(tree, [saved[str(i)] for i in range(len(leaves))])
            reduce.load(saved["gradcomp"])

    @jax.jit
    def step(params: Any, velocity: Any, points: jax.Array, side: jax.Array) -> tuple[Any, Any]:
        mean = reduce(jax.grad(loss)(params, points, side))
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, mean)
        return jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity), velocity

    for number in range(args.steps):
        batch = np.random.default_rng(number).integers(len(points), size=(nranks, args.batch))[rank]
        params, velocity = step(params, velocity, points[batch], side[batch])
    if args.save:
        state = reduce.save(shared=True)  # all ranks, before one writes the file
        if rank == 0:
            arrays: dict[str, Any] = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves((params, velocity)))}
            with open(args.save + ".new", "wb") as f:
                np.savez(f, gradcomp=state, **arrays)
            os.replace(args.save + ".new", args.save)
    if rank == 0:
        print(f"{nranks} rank{'s' * (nranks > 1)}, {args.steps} steps: loss {jax.jit(loss)(params, points, side):.6f}")


if __name__ == "__main__":
    main()
