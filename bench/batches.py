#!/usr/bin/python3
"""ds.batches() beside numpy, in one process: seconds of processor time for a value, medians of passes taken in turn.

    bench/batches.py [--values N] [--batch N] [--numbers N] [--passes N] [--json]

The values are float32 arrays, which lie in the order of epoch 0 and are read in the order of a later one. numpy copies as many of
its own array, in the same order:

into new     a new array for each batch, as a program without a pool has
into two     in turn: nothing but the copies"""

import argparse
import json
import statistics
import sys
import time

import numpy
from gradcomp.data import Dataset


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--values", type=int, default=2000, help="default 2000")
    p.add_argument("--batch", type=int, default=8, help="default 8")
    p.add_argument("--numbers", type=int, default=25600, help="of a value; default 25600: 100 KiB")
    p.add_argument("--passes", type=int, default=9, help="default 9")
    p.add_argument("--json", action="store_true", help="a list of rows as gradcomp bench io has them")
    return p.parse_args()


def copies(values, order, args, memory):
    """Into arrays of memory(number of the batch, its length)."""
    for k in range(0, args.values, args.batch):
        batch = memory(k // args.batch, min(args.batch, args.values - k))
        for row, i in zip(batch, order[k:k + args.batch]):
            numpy.copyto(row, values[i])
        yield batch


def seconds(batches, values):
    begin = time.process_time()
    for _ in batches:
        pass
    return (time.process_time() - begin) / values


def main():
    args = parse()
    with Dataset(range(args.values), prepare=lambda i: numpy.full(args.numbers, i, numpy.float32)) as ds:
        if ds.nranks > 1:
            sys.exit(f"{ds.nranks} ranks: this is for one")
        for _ in ds.batches(0, args.batch):
            pass
        table = numpy.empty((args.values, args.numbers), numpy.float32)
        for row, i in zip(table, range(args.values)):
            row[...] = i
        values = list(table)
        two = numpy.zeros((2, args.batch, args.numbers), numpy.float32)

        def new(_, count):
            return numpy.empty((count, args.numbers), numpy.float32)

        def in_turn(batch, count):
            return two[batch % 2][:count]

        took = {"ours": [], "new": [], "two": []}
        for turn in range(args.passes):
            order = [ds.order(turn + 1, p) for p in range(args.values)]
            took["ours"].append(seconds(ds.batches(turn + 1, args.batch), args.values))
            took["new"].append(seconds(copies(values, order, args, new), args.values))
            took["two"].append(seconds(copies(values, order, args, in_turn), args.values))
    rate = {name: args.numbers * 4 / statistics.median(t) / 1e6 for name, t in took.items()}
    rows = [{"case": f"batches of {args.batch}, beside numpy {where}", "value": rate["ours"], "unit": "MB/s",
             "peer": f"numpy, {where}", "peer_value": rate[name]}
            for name, where in (("new", "into new arrays"), ("two", "into two arrays in turn"))]
    if args.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(f"{row['case']:44} {row['value']:9.0f} MB/s  numpy {row['peer_value']:9.0f}  ratio {row['value'] / row['peer_value']:.3f}")


if __name__ == "__main__":
    main()
