"""One rank of delay.t: ParallelOptimizer beside the optimizer that it shares. Prints `ok NAME` or `not NAME WHY` for each thing."""

import copy

import torch
import torch.distributed as dist
from rank import say
from torch import nn

import gradcomp
import gradcomp.torch
from gradcomp.torch import LAMB, LARS, ParallelOptimizer

torch.set_num_threads(1)
gradcomp.torch.init_process_group()
RANK, SIZE = dist.get_rank(), dist.get_world_size()
GROUP = gradcomp.torch.group()


class Clipped(torch.optim.SGD):
    """Its step of one parameter depends on the others' gradients."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for g in self.param_groups for p in g["params"] if p.grad is not None], 1.0)
        return super().step(closure)


OPTIMIZERS = {"SGD": lambda p: torch.optim.SGD(p, lr=0.1), "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
              "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True), "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
              "NAdam": torch.optim.NAdam, "Rprop": torch.optim.Rprop, "LAMB": lambda p: LAMB(p, lr=0.01, weight_decay=0.1),
              "LARS": lambda p: LARS(p, lr=0.1, weight_decay=0.01)}


def refused(name, words, call, *given):
    try:
        call(*given)
    except (gradcomp.Error, TypeError) as e:
        say(all(w in str(e) for w in words.split("|")), f"{name} is refused", repr(e))
    else:
        say(False, f"{name} is refused", "it was not")


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(30, 20), nn.Linear(20, 10).double(), nn.Linear(10, 5).bfloat16(), nn.Linear(5, 1))
    model[0].to(memory_format=torch.channels_last)
    model[4].bias.requires_grad_(False)
    return model


def give_gradients(model, number):
    draw = torch.Generator().manual_seed(number)
    for p in model.parameters():
        drawn = torch.randn(p.shape, generator=draw).to(p.dtype)
        p.grad = drawn if p.requires_grad and (number > 3 or p.numel() != 10) else None


def pair(make):
    """A model and its optimizer, and the same shared."""
    one, other = network(), network()
    return one, make(one.parameters()), other, ParallelOptimizer(make(other.parameters()), GROUP)


def steps(models, optimizers, begin, end):
    for number in range(begin, end):
        for model, optimizer in zip(models, optimizers):
            give_gradients(model, number)
            optimizer.step()


def alike(one, other):
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters()))


for name, make in OPTIMIZERS.items():
    one, plain, other, shared = pair(make)
    rates = [torch.optim.lr_scheduler.StepLR(o, 4) for o in (plain, shared)]
    steps((one, other), (plain, shared), 0, 9)
    decided = shared.reason.startswith(("shared:", "not shared:"))
    shared._shared = True  # whatever was found
    steps((one, other), (plain, shared), 9, 14)
    for rate in rates:
        rate.step()
    shared.consolidate()
    state = shared.state_dict()
    say(decided and alike(one, other) and str(state) == str(plain.state_dict()), f"{name}: weights and state to the bit", shared.reason)
    plain.load_state_dict(copy.deepcopy(state))
    shared.load_state_dict(copy.deepcopy(state))
    steps((one, other), (plain, shared), 14, 17)
    say(alike(one, other), f"{name}: both go on from the shared one's state")

one, plain, other, shared = pair(lambda p: Clipped(p, lr=0.1))
steps((one, other), (plain, shared), 0, 12)
say(alike(one, other) and "depends on others" in shared.reason, "an optimizer whose parameters depend on each other is left alone", shared.reason)

one, plain, other, shared = pair(OPTIMIZERS["AdamW"])
steps((one, other), (plain, shared), 0, 9)
shared._shared = True
steps((one, other), (plain, shared), 9, 11)
refused("a state that is spread over ranks", "consolidate()", shared.state_dict)
more = [nn.Parameter(torch.ones(4)) for _ in range(2)]
plain.add_param_group({"params": [more[0]], "lr": 0.5})
shared.add_param_group({"params": [more[1]], "lr": 0.5})
for p in more:
    p.grad = torch.ones(4)
steps((one, other), (plain, shared), 11, 24)
shared.consolidate()
say(alike(one, other) and torch.equal(*more) and str(shared.state_dict()) == str(plain.state_dict()), "parameters that are added", shared.reason)
shared._shared, shared._whole_time, shared._steps = True, 0.0, 98
steps((one, other), (plain, shared), 24, 27)
say(shared._shared is False and alike(one, other) and str(shared.state_dict()) == str(plain.state_dict()), "sharing ends when it does not pay", shared.reason)
loss = shared.step(lambda: torch.tensor(3.0))
say(loss == 3, "a closure's loss is returned", loss)
shared.zero_grad()
say(all(p.grad is None or not p.grad.any() for p in other.parameters()), "zero_grad()")

few = nn.Parameter(torch.ones(3))
shared = ParallelOptimizer(torch.optim.SGD([few], lr=1.0), GROUP)
for _ in range(10):
    few.grad = torch.ones(3)
    shared.step()
say(few.tolist() == [-9] * 3, "fewer parameters than ranks", few)
refused("a copy", "state_dict", copy.deepcopy, shared)
refused("what is no optimizer", "has been made", ParallelOptimizer, torch.optim.SGD, GROUP)
refused("one that is shared already", "already", ParallelOptimizer, shared, GROUP)
refused("LBFGS", "together", lambda: ParallelOptimizer(torch.optim.LBFGS([few]), GROUP))
refused("parameters on no device", "meta", lambda: ParallelOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(3, device="meta"))], lr=1.0), GROUP))
refused("another model on a rank", "differ between ranks",
        lambda: ParallelOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(3 + RANK // (SIZE - 1)))], lr=1.0), GROUP))
dist.destroy_process_group()
