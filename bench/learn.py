"""One rank of bench/accuracy: trains two small models to their end with the
compressor it is told, as a user would: DDP and gradcomp.torch.attach().

Its arguments, or without any the lines on standard input, are JSON objects; rank 0 answers each with one line:

{task, spec, momentum, seed, delay}   {loss, accuracy, relative_error, wire_ratio, wire_bytes (rank 0's, a step)};
                                      with `every`, also {curve: [[steps done, test loss], ...]} after every so many.
                                      `rate` and `collective` in place of the usual ones
{task, ways: [[spec, momentum], ...], steps}
                                      {step_ms: [...]}: the median of each way, which take a step in turn

digits   scikit-learn's 8x8 digits, a perceptron of 305,000 parameters
text     the next letter of the King James Bible from the 12 before it, a
         perceptron over learned embeddings with 220,000 parameters
"""

import json
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gradcomp.torch

CONTEXT = 12
WARM = 5  # steps


class Digits:
    steps, batch, rate = 400, 16, 0.05

    def __init__(self):
        digits = load_digits()
        order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(1797))
        x = torch.tensor(digits.data, dtype=torch.float32)[order] / 8 - 1
        y = torch.tensor(digits.target)[order]
        cut = len(x) * 4 // 5
        self.train, self.test = (x[:cut], y[:cut]), (x[cut:], y[cut:])

    @staticmethod
    def network():
        return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

    def sample(self, generator, count):
        i = torch.randint(len(self.train[0]), (count,), generator=generator)
        return self.train[0][i], self.train[1][i]


class Text:
    steps, batch, rate = 3000, 64, 0.1

    def __init__(self):
        text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], stdout=subprocess.PIPE, check=True).stdout.decode()
        self.letters = sorted(set(text))
        code = {c: i for i, c in enumerate(self.letters)}
        data = torch.tensor([code[c] for c in text])
        cut = len(data) * 19 // 20
        self.data = data[:cut]
        places = torch.arange(CONTEXT, len(data) - cut, 23)
        self.test = self.windows(data[cut:], places)

    @staticmethod
    def windows(data, places):
        return data[places[:, None] + torch.arange(-CONTEXT, 0)], data[places]

    def network(self):
        return nn.Sequential(nn.Embedding(len(self.letters), 24), nn.Flatten(), nn.Linear(24 * CONTEXT, 320), nn.ReLU(),
                             nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, len(self.letters)))

    def sample(self, generator, count):
        return self.windows(self.data, torch.randint(CONTEXT, len(self.data), (count,), generator=generator))


def usual_rate(task, spec, momentum):
    # demo gives each gradient once; a sign, or a direction of dion, is as long as the rate itself.
    if spec.startswith("demo"):
        return 0.001 if "sign=yes" in spec else task.rate * 10
    if spec.startswith("dion"):
        return 0.02
    # A step without momentum is as long as one with it is in the end.
    return task.rate * (10 if momentum == 0 else 1)


class Training:
    """A model, what averages its gradients, and how it is trained."""

    def __init__(self, task, spec, momentum, seed, delay=0, rate=None, collective=None):
        torch.manual_seed(seed)
        self.task = task
        self.model = DistributedDataParallel(task.network(), gradient_as_bucket_view=True)
        self.attached = gradcomp.torch.attach(self.model, compressor=spec, collective=collective, seed=seed, delay=delay)
        rate = rate or usual_rate(task, spec, momentum)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=momentum or 0)
        # The last third goes down to nothing, so that the end is not a matter of luck.
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: min(1, 3 * (1 - s / task.steps)))

    def step(self, x, y):
        self.optimizer.zero_grad()
        cross_entropy(self.model(x), y).backward()
        self.optimizer.step()
        self.schedule.step()

    def test(self):
        """The test loss, and the share that is right."""
        x, y = self.task.test
        with torch.no_grad():
            out = self.model.module(x)
        return cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()


def learn(task, spec, momentum, seed, delay, every=0, rate=None, collective=None):
    """The test loss, its accuracy, and what the compressor says of itself."""
    training = Training(task, spec, momentum, seed, delay, rate, collective)
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    curve = []
    for step in range(1, task.steps + 1):
        training.step(*task.sample(generator, task.batch))
        if every and step % every == 0:
            curve.append([step, training.test()[0]])
    training.attached.drain(training.optimizer)
    stats = training.attached.stats()
    loss, accuracy = training.test()
    return {"loss": loss, "accuracy": accuracy, **({"curve": curve} if every else {}),
            "relative_error": stats["error_mean"] if stats["error_steps"] else None,
            "wire_bytes": stats["wire_bytes"] / task.steps,
            "wire_ratio": stats["dense_bytes"] / stats["wire_bytes"] if stats["wire_bytes"] else None}


def timed(task, ways, steps):
    """What a step takes, in ms. The first steps make room, and are not counted."""
    trainings = [Training(task, spec, momentum, 0) for spec, momentum in ways]
    took = [[] for _ in ways]
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(WARM + steps):
        x, y = task.sample(generator, task.batch)
        for training, of in zip(trainings, took):
            dist.barrier()
            began = time.monotonic()
            training.step(x, y)
            of.append(1e3 * (time.monotonic() - began))
    return {"step_ms": [statistics.median(of[WARM:]) for of in took]}


def main():
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group()
    tasks = {}
    # Line by line: the next one is written when this one has been answered.
    for line in sys.argv[1:] or iter(sys.stdin.readline, ""):
        order = json.loads(line)
        if order["task"] not in tasks:
            tasks[order["task"]] = {"digits": Digits, "text": Text}[order["task"]]()
        task = tasks[order.pop("task")]
        result = timed(task, **order) if "ways" in order else learn(task, **order)
        if dist.get_rank() == 0:
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
