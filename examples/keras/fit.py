#!/usr/bin/env python3
"""A small network in Keras 3 that tells two spirals apart, on any of its backends. The ranks of a job share every batch.

    KERAS_BACKEND=jax gradcomp run -n 2 --gradcomp=topk:density=0.1 python3 fit.py
    KERAS_BACKEND=torch srun --mpi=pmix -N4 --gradcomp=powersgd:rank=2 python3 fit.py
"""

import argparse

import keras
import numpy as np

import gradcomp.keras


def spirals(n: int) -> tuple[np.ndarray, np.ndarray]:
    """n points of two spirals, and which of them each is on."""
    draw = np.random.default_rng(0)
    turn, side = 1 + 8 * np.sqrt(draw.random(n)), draw.choice([-1.0, 1.0], n)
    points = (side * turn * [np.cos(turn), np.sin(turn)]).T / 9 + draw.normal(0, 0.01, (n, 2))
    return points.astype(np.float32), (side > 0).astype(np.float32)


def network(width: int) -> keras.Model:
    def hidden(scale: float) -> keras.layers.Layer:
        return keras.layers.Dense(width, activation="tanh", kernel_initializer=keras.initializers.VarianceScaling(scale))

    return keras.Sequential([keras.layers.Input((2,)), hidden(16.0), hidden(2.0), keras.layers.Dense(1)])


def main() -> None:
    p = argparse.ArgumentParser(description="two spirals in Keras, data-parallel")
    p.add_argument("--epochs", type=int, default=60)
    p.add_argument("--batch", type=int, default=64, help="points of a rank in a step (default 64)")
    p.add_argument("--width", type=int, default=64, help="units of each hidden layer (default 64)")
    p.add_argument("--save", help="a .keras file to write every 10 epochs")
    p.add_argument("--resume", help="a .keras file to go on from, of any number of ranks")
    args = p.parse_args()

    keras.utils.set_random_seed(0)  # the same weights on all ranks
    world = gradcomp.keras.world()
    points, side = spirals(2048)
    # Batches of a step lie side by side, so that one process with a batch as long does the same.
    mine = np.arange(len(points)).reshape(-1, world.nranks, args.batch)[:, world.rank].ravel()
    if args.resume:
        model = keras.saving.load_model(args.resume)
    else:
        model = network(args.width)
        optimizer = gradcomp.keras.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        model.compile(optimizer, loss=keras.losses.BinaryCrossentropy(from_logits=True))
    callbacks = [gradcomp.keras.Checkpoint(args.save, epochs=10)] if args.save else []
    model.fit(points[mine], side[mine], batch_size=args.batch, epochs=args.epochs, shuffle=False, verbose=0, callbacks=callbacks)
    if world.rank == 0:
        loss = model.evaluate(points, side, batch_size=len(points), verbose=0)
        print(f"{world.nranks} rank{'s' * (world.nranks > 1)}, {args.epochs} epochs on {keras.backend.backend()}: loss {loss:.6f}")


if __name__ == "__main__":
    main()
