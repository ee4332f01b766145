#!/usr/bin/env python3
"""Trains on files through gradcomp.data: read and decoded once, then served from memory.

    python3 dataset.py /tmp/digits
    torchrun --nproc_per_node=4 dataset.py /tmp/digits
    srun --mpi=pmix -N4 --gradcomp-stage=/nfs/digits python3 dataset.py

The path is that of --gradcomp-stage when none is given. A path that is not there is
written first, from scikit-learn's handwritten digits: a folder of PGM images for
each class, or with --as tar shards as WebDataset has them.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import tarfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import gradcomp.torch
from gradcomp.data import Dataset, Sample, Sampler


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description="train on digits in files, data-parallel")
    p.add_argument("path", nargs="?", default=os.environ.get("GRADCOMP_DATA"), help="default $GRADCOMP_DATA")
    p.add_argument("--as", dest="form", choices=["folder", "tar"], default="folder",
                   help="how to write a path that is not there (default folder)")
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--batch", type=int, default=16, help="images a rank and step (default 16)")
    p.add_argument("--workers", type=int, default=0, help="DataLoader's worker processes a rank (default 0)")
    p.add_argument("--memory", help="what a node keeps of the dataset, such as 8G (default dataset.memory)")
    args = p.parse_args()
    if args.path is None:
        p.error("no path, and no GRADCOMP_DATA of --gradcomp-stage")
    return args


def write(path: str, form: str) -> None:
    """Images 16 times as large as they are, as files; there when they are whole."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = [(f"{i:04}", int(label), b"P5\n128 128\n16\n" + bytes(image.astype("u1").repeat(16, 0).repeat(16, 1)))
              for i, (image, label) in enumerate(zip(digits.images, digits.target))]
    unfinished = f"{path}.{os.getpid()}"
    os.mkdir(unfinished)
    try:
        if form == "tar":
            write_shards(unfinished, images)
        else:
            write_folders(unfinished, images)
        os.rename(unfinished, path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_folders(path: str, images: list[tuple[str, int, bytes]]) -> None:
    for d in range(10):
        os.mkdir(os.path.join(path, str(d)))
    for name, label, data in images:
        with open(os.path.join(path, str(label), name + ".pgm"), "wb") as f:
            f.write(data)


def write_shards(path: str, images: list[tuple[str, int, bytes]], shard: int = 500) -> None:
    for first in range(0, len(images), shard):
        with tarfile.open(os.path.join(path, f"digits-{first // shard:03}.tar"), "w") as tar:
            for name, label, data in images[first:first + shard]:
                for suffix, part in (("pgm", data), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{name}.{suffix}")
                    member.size = len(part)
                    tar.addfile(member, io.BytesIO(part))


def decode(sample: Sample) -> tuple[Tensor, int | None]:
    """Once an image: a PGM file as a tensor, and its class."""
    image = sample.parts.get("pgm", sample.data)
    magic, size, most, pixels = image.split(b"\n", 3)
    width, height = map(int, size.split())
    if magic != b"P5" or len(pixels) != width * height:
        raise ValueError(f"{sample.key}: not a PGM image of one byte a pixel")
    x = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(1, height, width)
    label = int(sample.parts["cls"]) if "cls" in sample.parts else sample.label
    return nn.functional.avg_pool2d(x / int(most), 4), label


def augment(value: tuple[Tensor, int]) -> tuple[Tensor, int]:
    """At every access: what is random."""
    x, label = value
    return x + 0.05 * torch.randn_like(x), label


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    gradcomp.torch.init_process_group()
    rank = dist.get_rank()
    torch.manual_seed(0)
    if rank == 0 and not os.path.exists(args.path):
        write(args.path, args.form)
    dist.barrier()

    ds = Dataset(args.path, decode, augment, memory=args.memory)
    # All ranks take equally many steps: DistributedDataParallel needs that.
    sampler = Sampler(ds, drop_last=True)
    loader = DataLoader(ds, batch_size=args.batch, sampler=sampler, num_workers=args.workers,
                        persistent_workers=args.workers > 0)
    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10)))
    gradcomp.torch.attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        start = waited = time.perf_counter()
        loading, right = 0.0, 0
        for x, label in loader:
            loading += time.perf_counter() - waited
            optimizer.zero_grad()
            y = model(x)
            nn.functional.cross_entropy(y, label).backward()
            optimizer.step()
            right += (y.argmax(1) == label).sum().item()
            waited = time.perf_counter()
        if rank == 0:
            print(f"epoch {epoch}: {loading:.3f} s of {waited - start:.3f} s loading, "
                  f"training accuracy {right / len(sampler):.4f}", flush=True)
    if rank == 0:
        print(", ".join(f"{name} {value:.4g}" for name, value in ds.stats().items()), flush=True)
    ds.close()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
