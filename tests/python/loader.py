"""One rank of data_ranks.t and of the loader's figures: reads the dataset argv[2] in
the way that argv[1] names, and prints what it saw, a JSON line each time."""

import hashlib
import json
import os
import signal
import sys
import threading
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import gradcomp.torch
from gradcomp.data import Dataset, Sampler, Samples

mode, path = sys.argv[1:3]
torch.set_num_threads(1)
gradcomp.torch.init_process_group()
rank, nranks = dist.get_rank(), dist.get_world_size()
# Every call of prepare(), by whatever process of this rank, is a line here.
calls = os.open(f"{sys.argv[3]}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
samples = Samples(path)
number = {samples.info(i)[0]: i for i in range(len(samples))}


def prepare(sample):
    os.write(calls, f"{number[sample.key]}\n".encode())
    # As long as a decoder would take: the ranks and workers run at the same time.
    time.sleep(0.001)
    digest = hashlib.sha256(sample.data).digest()
    return number[sample.key], np.frombuffer(digest * 32, np.uint8), -1 if sample.label is None else sample.label


def right(i, array):
    """Whether this is the value of sample i."""
    return bytes(array) == hashlib.sha256(samples[i].data).digest() * 32


def say(word, values):
    """The samples of some values, and whether each was right."""
    seen, good = [], True
    for numbers, arrays, _ in values:
        for i, a in zip(numbers.tolist(), arrays.numpy()) if isinstance(numbers, torch.Tensor) else [(numbers, arrays)]:
            seen.append(i)
            good = good and right(i, a)
    print(json.dumps({"word": word, "seen": seen, "right": good}), flush=True)


def tensors(value):
    return value[0], torch.from_numpy(np.array(value[1])), value[2]


def plain(workers):
    with Dataset(samples, prepare, workers=workers, prefetch=8) as ds:
        for epoch in range(3):
            say(f"epoch {epoch}", ds.epoch(epoch))
        say("resumed", ds.epoch(1, start=ds.length // 2))
        print(json.dumps({"word": "stats", **ds.stats()}), flush=True)


def loader(workers):
    with Dataset(samples, prepare, tensors) as ds:
        batches = DataLoader(ds, batch_size=4, sampler=ds.sampler, num_workers=workers, persistent_workers=workers > 0)
        for epoch in range(3):
            ds.sampler.set_epoch(epoch)
            say(f"epoch {epoch}", batches)
            dist.barrier()  # as the steps of training keep ranks together
        # A job that stops in mid-epoch, and one that goes on.
        ds.sampler.set_epoch(3)
        halves, taken = [], 0
        for batch in batches:
            halves.append(batch)
            taken += len(batch[0])
            if len(halves) == 3:
                break
        state = ds.sampler.state_dict(taken=taken)
        say("first half", halves)
        del batches
        sampler = Sampler(ds)
        sampler.load_state_dict(state)
        sampler.set_epoch(3)
        say("second half", DataLoader(ds, batch_size=4, sampler=sampler, num_workers=workers))
        even = Sampler(ds, drop_last=True)
        print(json.dumps({"word": "even", "seen": list(even), "right": len(list(even)) == len(even)}), flush=True)
        print(json.dumps({"word": "stats", **ds.stats()}), flush=True)


def distributed(follow):
    with Dataset(samples, prepare, tensors, workers=2 if follow else 0) as ds:
        order = DistributedSampler(ds, seed=5)
        batches = DataLoader(ds, batch_size=4, sampler=ds.follow(order) if follow else order,
                             num_workers=0 if follow else 2)
        for epoch in range(3):
            order.set_epoch(epoch)
            say(f"epoch {epoch}", batches)
            dist.barrier()
        print(json.dumps({"word": "stats", **ds.stats()}), flush=True)


def die(how):
    # Not closed by hand: exit is part of it.
    ds = Dataset(samples, prepare)
    for n, _ in enumerate(ds.epoch(0)):
        if n == 3 and rank == 1:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("rank 1 has had enough")
    for epoch in range(1, 10000):
        for _ in ds.epoch(epoch):
            pass
    print("went on to the end")


def fail():
    """One sample cannot be prepared: its rank says so and goes on."""
    def broken(sample):
        if number[sample.key] == 5:
            raise ValueError("five is bad")
        return prepare(sample)

    with Dataset(samples, broken) as ds:
        errors = []
        for epoch in range(2):
            for i in (ds.order(epoch, p) for p in range(ds.length)):
                try:
                    ds[i]
                except gradcomp.Error as e:
                    errors.append(str(e))
        print(json.dumps({"word": "errors", "seen": errors, "right": True}), flush=True)


def worker(how):
    """A DataLoader worker that dies, or raises, in prepare()."""
    parent = os.getpid()

    def broken(sample):
        if number[sample.key] == ds.order(0, 6) and os.getpid() != parent:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("no more")
        return prepare(sample)

    ds = Dataset(samples, broken, tensors)
    for _ in range(2):
        for _ in DataLoader(ds, batch_size=2, sampler=ds.sampler, num_workers=2):
            pass


def interrupted():
    """Ctrl-C while next() loads what another node has, and could give."""
    raised = []

    def quick(_sample):
        if kept:
            raised.append(1)
            raise KeyboardInterrupt
        return 0

    kept, caught, processes = False, 0, [None] * nranks
    dist.all_gather_object(processes, os.getpid())
    with Dataset(samples, quick, reload=True, prefetch=8) as ds:
        for i in range(len(ds)):
            ds[i]
        dist.barrier()
        kept = True
        for epoch in range(20):
            # The other one answers late in some, so that its values are loaded again whatever a load takes.
            if not rank and epoch % 5 == 1:
                os.kill(processes[1], signal.SIGSTOP)
                threading.Timer(0.1, os.kill, (processes[1], signal.SIGCONT)).start()
            try:
                for _ in ds.batches(epoch, 16) if epoch % 2 else ds.epoch(epoch):
                    pass
            except KeyboardInterrupt:
                caught += 1
        dist.barrier()
    print(json.dumps({"word": "interrupted", "caught": caught, "raised": len(raised)}), flush=True)


def dropped():
    """Datasets that nobody closes, and one beside them."""
    ds = Dataset(samples, prepare)
    half = [v for v, _ in zip(ds.epoch(0), range(10))]
    del ds
    with Dataset(samples, prepare, seed=1) as ds:
        say("epoch 0", ds.epoch(0))
    print(json.dumps({"word": "held", "right": all(right(i, a) for i, a, _ in half)}))


def mismatch():
    Dataset(samples, prepare, seed=rank)


words = mode.split(":")
{"plain": lambda: plain(int(words[1])), "loader": lambda: loader(int(words[1])),
 "distributed": lambda: distributed(words[1] == "follow"), "die": lambda: die(words[1]), "fail": fail,
 "worker": lambda: worker(words[1]), "mismatch": mismatch, "dropped": dropped,
 "interrupted": interrupted}[words[0]]()
