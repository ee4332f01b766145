"""One rank of bench/accuracy: trains two small models to their end with the
compressor it is told, as a user would: DDP and gradcomp.torch.attach().

Lines on standard input are JSON objects {task, spec, momentum, seed, delay}; rank 0
answers each with one line {loss, accuracy, relative_error, wire_ratio}.

digits   scikit-learn's 8x8 digits, a perceptron of 305,000 parameters
text     the next letter of the King James Bible from the 12 before it, a
         perceptron over learned embeddings with 220,000 parameters
"""

import json
import subprocess
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gradcomp.torch

CONTEXT = 12


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


def learn(task, spec, momentum, seed, delay):
    """The test loss, its accuracy, and what the compressor says of itself."""
    torch.manual_seed(seed)
    model = DistributedDataParallel(task.network(), gradient_as_bucket_view=True)
    attached = gradcomp.torch.attach(model, compressor=spec, seed=seed, delay=delay)
    # A step without momentum is as long as one with it is in the end.
    rate = task.rate * (10 if momentum == 0 else 1)
    # demo gives each gradient once; a sign, or a direction of dion, is as long as the rate itself.
    if spec.startswith("demo"):
        rate = 0.001 if "sign=yes" in spec else task.rate * 10
    if spec.startswith("dion"):
        rate = 0.02
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum or 0)
    # The last third goes down to nothing, so that the end is not a matter of luck.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, 3 * (1 - s / task.steps)))
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    for _ in range(task.steps):
        x, y = task.sample(generator, task.batch)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
    attached.drain(optimizer)
    stats = attached.stats()
    with torch.no_grad():
        out = model.module(task.test[0])
    return {"loss": cross_entropy(out, task.test[1]).item(),
            "accuracy": (out.argmax(1) == task.test[1]).float().mean().item(),
            "relative_error": stats["error_mean"] if stats["error_steps"] else None,
            "wire_ratio": stats["dense_bytes"] / stats["wire_bytes"] if stats["wire_bytes"] else None}


def main():
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group()
    tasks = {}
    # Line by line: the next one is written when this one has been answered.
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        if order["task"] not in tasks:
            tasks[order["task"]] = {"digits": Digits, "text": Text}[order["task"]]()
        result = learn(tasks[order["task"]], order["spec"], order["momentum"], order["seed"], order["delay"])
        if dist.get_rank() == 0:
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
