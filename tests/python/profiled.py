"""profiled.py FOLDER: steps of small models under torch.profiler, for kineto.t. Writes of each model NAME.json, the trace; NAME.names, its
parameters; and all.json: the order in which PyTorch says that gradients come."""

import json
import os
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

FORWARD, BACKWARD = (0.01, 0.03), (0.02, 0.01)  # seconds that pass behind each of the first two layers


class Pause(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.seconds = backward
        time.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None, None


class Paused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(n, n + 1) for n in (4, 5, 6))

    def forward(self, x):
        for layer, *seconds in zip(self.layers, FORWARD, BACKWARD):
            x = Pause.apply(layer(x), *seconds)
        return self.layers[2](x)


class Text(torch.nn.Module):
    """A table that is multiplied by again at the end, and a parameter that the loss does not depend on."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(11, 8)
        self.middle = torch.nn.LSTM(8, 8)
        self.unused = torch.nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.middle(self.table(x))[0] @ self.table.weight.t()


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.block = torch.nn.Sequential(torch.nn.Linear(8, 9), torch.nn.ReLU(), torch.nn.Linear(9, 10))
        self.last = torch.nn.Linear(10, 2)

    def forward(self, x):
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=False))


def convolutions():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3, bias=False), torch.nn.Flatten(),
                               torch.nn.Linear(64, 5))


def order(model, x):
    """Shapes of the parameters by the order in which their gradients come."""
    came = []
    hooks = [p.register_hook(lambda g, p=p: came.append(p)) for p in model.parameters()]
    model(x).sum().backward()
    for hook in hooks:
        hook.remove()
    return [list(p.shape) for p in came]


def main(folder):
    said = {"version": torch.__version__, "kineto": torch.profiler.kineto_available(), "forward": FORWARD, "backward": BACKWARD, "models": {}}
    torch.manual_seed(1)
    models = {"paused": (Paused(), torch.randn(2, 4)), "convolutions": (convolutions(), torch.randn(2, 3, 8, 8)),
              "text": (Text(), torch.randint(0, 11, (5, 2))), "checkpointed": (Checkpointed(), torch.randn(2, 4)),
              "linear": (torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)), torch.randn(2, 4))}
    for name, (model, x) in models.items() if said["kineto"] else ():
        said["models"][name] = order(model, x)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = iter(torch.utils.data.DataLoader([0] * 8))
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=name == "linear",
                     schedule=schedule(wait=1, warmup=1, active=3)) as profiler:
            for _ in range(5):
                next(batches)
                loss = model(x).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                profiler.step()
        profiler.export_chrome_trace(os.path.join(folder, name + ".json"))
        with open(os.path.join(folder, name + ".names"), "w", encoding="utf-8") as f:
            for n, p in model.named_parameters():
                print(n, "x".join(map(str, p.shape)) or "scalar", file=f)
    with open(os.path.join(folder, "all.json"), "w", encoding="utf-8") as f:
        json.dump(said, f)


if __name__ == "__main__":
    main(sys.argv[1])
