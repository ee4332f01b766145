"""One rank of attach.t: what attach() takes, and what it refuses before the first backward pass.
Prints a line for each, and the same lines on all ranks."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import gradcomp.torch


def tried(name, make, **options):
    try:
        gradcomp.torch.attach(make(), **options).detach()
        print(name, "attached")
    except (gradcomp.Error, TypeError) as e:
        print(name, type(e).__name__, e)
    except RuntimeError as e:
        print(name, "no" if "Invalid scalar type" in str(e) else repr(e))  # a DDP that old Gloo cannot make


def module(dtype, last=None):
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).to(dtype), *([last] if last is not None else []))


class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = DDP(nn.Linear(4, 4))


def hooked():
    model = DDP(nn.Linear(4, 4))
    model.register_comm_hook(None, other)
    return model


def other(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    raise AssertionError


def ignored():
    model = module(torch.float64)
    DDP._set_params_and_buffers_to_ignore_for_model(model, ["1.weight", "1.bias"])
    return DDP(model)


def same_gradients(wrap):
    """Whether what wrap() makes gives DDP's own averages after attach()."""
    torch.manual_seed(1)
    model = wrap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    torch.manual_seed(1)
    reference = DDP(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    attachment = gradcomp.torch.attach(model)
    for step in range(3):
        torch.manual_seed(10 * dist.get_rank() + step)
        x = torch.randn(8, 4)
        for m in (model, reference):
            m.zero_grad()
            m(x).square().mean().backward()
    worst = max((a.grad - b.grad).abs().max().item() for a, b in zip(model.parameters(), reference.parameters()))
    steps = attachment.stats()["steps"]
    attachment.detach()
    return f"{'equal' if worst < 1e-6 else worst} after {steps} steps"


def uneven():
    """Ranks with fewer batches, in join(): whether weights are those of DDP alone."""
    ended = []
    for attached in (True, False):
        torch.manual_seed(1)
        model = DDP(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
        if attached:
            gradcomp.torch.attach(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for step in range(2 + 3 * dist.get_rank()):
                torch.manual_seed(10 * dist.get_rank() + step)
                optimizer.zero_grad()
                model(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()
        ended.append([p.detach().clone() for p in model.parameters()])
    worst = max((a - b).abs().max().item() for a, b in zip(*ended))
    return "equal" if worst < 1e-6 else worst


def compiled(model):
    return torch.compile(DDP(model), backend="eager")


class OnDevice(torch.Tensor):
    """A tensor as torch.load(map_location="cuda") makes it of one that was saved in host memory."""

    def cpu(self):
        return self.as_subclass(torch.Tensor)

    def data_ptr(self):
        raise AssertionError("the address of a device is read in host memory")


def states():
    """What load_state_dict() says of what is no state; the attachment goes on."""
    model = DDP(nn.Linear(4, 4))
    attachment = gradcomp.torch.attach(model)
    state = attachment.state_dict()
    for name, wrong in (("number", 5), ("bytes", {"gradcomp": b"abc"}), ("model", model.state_dict()),
                        ("whole", {"model": model.state_dict(), "gradcomp": state}), ("none", None), ("empty", {}),
                        ("right", state), ("on_device", {**state, "gradcomp": state["gradcomp"].as_subclass(OnDevice)})):
        try:
            attachment.load_state_dict(wrong)
            print(f"state_{name} taken")
        except gradcomp.Error as e:
            print(f"state_{name} refused: {e}")
    for wrong in (None, model):
        try:
            gradcomp.torch.attach(DDP(nn.Linear(4, 4)), delay=1).drain(wrong)
        except TypeError as e:
            print(f"drain_{type(wrong).__name__} {e}")
    try:
        torch.save({"gradcomp": attachment}, os.devnull)
    except TypeError as e:
        print(f"saved_whole {e}")
    attachment.detach()


tried("early", lambda: nn.Linear(4, 4))
gradcomp.torch.init_process_group()
tried("plain", lambda: DDP(module(torch.float16)))
tried("bare", lambda: nn.Linear(4, 4))
tried("wrapper", Wrapper)
tried("text", lambda: "model")
tried("float64", lambda: DDP(module(torch.float64)))
tried("complex", lambda: DDP(module(torch.complex64)))
tried("sparse", lambda: DDP(module(torch.float32, nn.Embedding(5, 3, sparse=True))))
tried("ignored", ignored)
tried("hooked", hooked)
states()
print("joined", uneven())
if hasattr(torch, "compile"):
    try:
        print("compiled", same_gradients(compiled))
    except Exception as e:  # a PyTorch that cannot compile on this Python
        print("compiled", "no" if "not supported" in str(e) or "not yet supported" in str(e) else repr(e))
try:
    from torch.distributed._composable import replicate
    from torch.distributed._composable.replicate import _ReplicateState  # noqa: F401
except ImportError:
    pass
else:
    print("replicated", same_gradients(replicate))
try:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
except (ImportError, ValueError):  # ValueError: 1.13 on Python 3.11
    pass
else:
    tried("sharded", lambda: fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (dist.get_world_size(),))))
