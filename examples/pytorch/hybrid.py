#!/usr/bin/env python3
"""A small transformer that eight processes share in three ways: two stages of layers (pp), two halves of the matrices (tp), two
shares of the samples (dp). A policy compresses what the groups of dp send, and nothing else. PyTorch 2.9 or later.

    gradcomp run -n 8 --gradcomp=dp/block:bits=8+any/none python3 hybrid.py
    GRADCOMP=dp/block:bits=8+any/none torchrun --nproc-per-node=8 hybrid.py
    srun --mpi=pmix -N4 -n8 --gradcomp=dp/block:bits=8+any/none python3 hybrid.py

--dp, --pp, --tp and --microbatches say how the work is shared. --plan FILE takes them out of a plan:

    gradcomp plan --parallel --model MODEL --machine FILE --emit torchtitan > degrees
    gradcomp run -n 8 python3 hybrid.py --plan degrees

--check 1e-4 has rank 0 train the same model by itself afterwards: its losses may be so far away, as a part of them. The task is that of
fsdp.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from fsdp import LENGTH, NUMBERS, sequences
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

import gradcomp.backend
import gradcomp.torch

DEFAULTS: dict[str, Any] = {"dp": 2, "pp": 2, "tp": 2, "microbatches": 4, "batch": 32, "schedule": "1F1B"}


class Layer(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.size = width // heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        # The rows of a head are next to each other, so that a part of them has whole heads.
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # Of a rank's heads: samples, then q, k and v, then heads, then places.
        q, k, v = self.qkv(self.before_attention(x)).unflatten(-1, (-1, 3, self.size)).permute(0, 3, 2, 1, 4).unbind(1)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(nn.functional.gelu(self.up(self.before_mlp(x))))
        return out


class Embeddings(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.numbers, self.places = nn.Embedding(NUMBERS, width), nn.Embedding(LENGTH, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.numbers(x) + self.places(torch.arange(x.shape[1]))
        return out


class Transformer(nn.Module):
    def __init__(self, args: argparse.Namespace):
        super().__init__()
        torch.manual_seed(0)
        self.first: nn.Module = Embeddings(args.width)
        self.layers = nn.Sequential(*(Layer(args.width, args.heads) for _ in range(args.layers)))
        self.last: nn.Module = nn.Sequential(nn.LayerNorm(args.width), nn.Linear(args.width, NUMBERS, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.layers(self.first(x)))
        return out

    def cut(self, stage: int, stages: int) -> None:
        """Keeps what a stage has."""
        each = len(self.layers) // stages
        self.layers = nn.Sequential(*list(self.layers)[stage * each:(stage + 1) * each])
        if stage > 0:
            self.first = nn.Identity()
        if stage < stages - 1:
            self.last = nn.Identity()


class Stage(PipelineStage):
    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """PyTorch 2.9 greets the neighbours with eight bytes for a tensor of four, for NCCL to connect. Here messages do."""
        return []


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def samples(args: argparse.Namespace, step: int) -> Tensor:
    return sequences(args.batch, torch.Generator().manual_seed(step))


def shared(args: argparse.Namespace, mesh: DeviceMesh) -> list[float]:
    """The losses of all steps, trained by all ranks."""
    place, model = mesh["pp"].get_local_rank(), Transformer(args)
    is_first, is_last = place == 0, place == args.pp - 1
    model.cut(place, args.pp)
    if args.tp > 1:
        halves: dict[str, ParallelStyle] = {"layers.*.qkv": ColwiseParallel(), "layers.*.out": RowwiseParallel(),
                                            "layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}
        if is_last:
            halves["last.1"] = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(model, mesh["tp"], halves)
    if args.dp > 1:
        # A stage has several micro-batches on their way, and keeps the weights for all of them.
        for part in [*model.layers, model]:
            fully_shard(part, mesh=mesh["dp"], reshard_after_forward=args.pp == 1)
    stage = Stage(model, place, args.pp, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = get_schedule_class(args.schedule)(stage, args.microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    means = []
    for step in range(args.steps):
        mine = samples(args, step).chunk(args.dp)[mesh["dp"].get_local_rank()]
        losses: list[Tensor] = []
        optimizer.zero_grad()
        schedule.step(*([mine[:, :-1].contiguous()] if is_first else []), target=mine[:, 1:].contiguous() if is_last else None, losses=losses)
        optimizer.step()
        mean = torch.stack(losses).detach().mean() / (args.dp * args.tp) if is_last else torch.zeros(())
        dist.all_reduce(mean)
        means.append(mean.item())
        if dist.get_rank() == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {means[-1]:.4f}", flush=True)
    return means


def alone(args: argparse.Namespace) -> list[float]:
    """The same, trained by this process."""
    model = Transformer(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(args.steps):
        x = samples(args, step)
        optimizer.zero_grad()
        loss = loss_of(model(x[:, :-1]), x[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def planned(path: str) -> dict[str, Any]:
    """What `gradcomp plan --parallel --emit torchtitan` has written there."""
    with open(path, encoding="ascii") as f:
        told = dict(word.lstrip("-").rpartition("=")[::2] for word in f.read().split())
    try:
        of = {name.rpartition(".")[2]: int(value) for name, value in told.items() if value.isdigit()}
        return {"dp": of["data_parallel_replicate_degree"] * of["data_parallel_shard_degree"], "pp": of["pipeline_parallel_degree"],
                "tp": of["tensor_parallel_degree"], "batch": of["global_batch_size"],
                "microbatches": of["local_batch_size"] // of["pipeline_parallel_microbatch_size"],
                "schedule": told["parallelism.pipeline_parallel_schedule"]}
    except (KeyError, ZeroDivisionError) as e:
        raise ValueError(f"{path} is no plan that gradcomp plan --parallel --emit torchtitan has written: it lacks {e}") from None


def settle(args: argparse.Namespace, nranks: int) -> None:
    """Fills in what was not asked for. ValueError, OSError: the work cannot be shared so."""
    for name, value in {**DEFAULTS, **(planned(args.plan) if args.plan else {})}.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    for name, value in vars(args).items():
        if isinstance(value, int) and value < 1:
            raise ValueError(f"--{name} is {value}; it must be 1 at least")
    if args.dp * args.pp * args.tp != nranks:
        raise ValueError(f"--dp {args.dp} x --pp {args.pp} x --tp {args.tp} are {args.dp * args.pp * args.tp} ranks, and {nranks} have been "
                         "started: start as many, or give other degrees")
    for many, name, divisor, of in ((args.layers, "layers", args.pp, f"--pp {args.pp} stages"), (args.heads, "heads", args.tp, f"--tp {args.tp} ranks"),
                                    (args.width, "width", args.heads, f"--heads {args.heads} heads"),
                                    (args.batch, "batch", args.dp * args.microbatches,
                                     f"--dp {args.dp} x --microbatches {args.microbatches} micro-batches")):
        if many % divisor:
            raise ValueError(f"--{name} {many} cannot be divided evenly among {of}")
    if args.microbatches < args.pp:
        raise ValueError(f"--microbatches {args.microbatches} are fewer than --pp {args.pp} stages, of which some would never have one")
    get_schedule_class(args.schedule)


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description="a transformer that is parallel in samples, layers and matrices")
    p.add_argument("--dp", type=int, help="ranks that share the samples (default 2)")
    p.add_argument("--pp", type=int, help="stages that share the layers (default 2)")
    p.add_argument("--tp", type=int, help="ranks that share each matrix (default 2)")
    p.add_argument("--microbatches", type=int, help="that a step of a pipeline has (default 4)")
    p.add_argument("--batch", type=int, help="samples of a step, on all ranks (default 32)")
    p.add_argument("--schedule", choices=("1F1B", "GPipe"), help="of the pipelines (default 1F1B)")
    p.add_argument("--plan", metavar="FILE", help="takes these from a plan for torchtitan, but for those that are given")
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--check", type=float, metavar="PART", help="compare with one process; status 1 where a loss differs by more")
    return p.parse_args()


def agreed(args: argparse.Namespace) -> argparse.Namespace:
    """What rank 0 makes of the arguments, which are the same everywhere then. Ends all ranks where that is nothing."""
    said: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            settle(args, dist.get_world_size())
            said = [args]
        except (ValueError, OSError) as e:
            print(f"hybrid.py: {e}", file=sys.stderr)
    dist.broadcast_object_list(said)
    if said[0] is None:
        dist.destroy_process_group()
        sys.exit(1)
    found: argparse.Namespace = said[0]
    return found


def tell(rows: Sequence[dict[str, Any]]) -> None:
    """What each group of this rank has sent."""
    print("group      operation       calls        MB   sent MB  by" if rows else "nothing was counted: there is no policy", flush=True)
    for row in sorted(rows, key=lambda row: (row["group"], row["operation"])):
        print(f"{row['group']:<10} {row['operation']:<14} {row['calls']:>6} {row['dense_bytes'] / 1e6:>9.3f} {row['wire_bytes'] / 1e6:>9.3f}  "
              f"{row['entry'] or 'as it is'}", flush=True)


def main() -> int:
    args = parse()
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group("gradcomp")
    args = agreed(args)
    # In a plan ranks that share a matrix are next to each other, then those that share samples, then stages.
    losses = shared(args, init_device_mesh("cpu", (args.pp, args.dp, args.tp), mesh_dim_names=("pp", "dp", "tp")))
    status = 0
    if dist.get_rank() == 0:
        print(f"dp {args.dp} x pp {args.pp} x tp {args.tp}: loss {losses[-1]:.7g} after {args.steps} steps", flush=True)
        tell(gradcomp.backend.stats(plain=True))
        if args.check is not None:
            reference = alone(args)
            apart = max(abs(a - b) / b for a, b in zip(losses, reference))
            status = int(not apart <= args.check)
            print(f"one process: loss {reference[-1]:.7g}; furthest apart by {apart:.2g}, {'more than' if status else 'within'} {args.check:g}", flush=True)
    return status


if __name__ == "__main__":
    failed = main()
    dist.destroy_process_group()
    sys.exit(failed)
