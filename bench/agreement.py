#!/usr/bin/env python3
"""Simulates the agreement on who is left (runtime/survivors/roster.h) among many ranks.

    bench/agreement.py [--ranks 64,1000,10000,100000] [--call 200e-6] [--rtt 100e-6] [--rate 125e6]

Follows roster_agree.c and roster_call.c call by call: groups, rounds, time limits, turns of leaders, slots. Constants:
processor time of a call at each of its ends (tests/unit/roster prints that of both together), a round trip, of which a call takes
four, and the rate of a link. Time counts from when the first rank is told of the failure to when the last has the decision; a rank
comes to the agreement when the news has reached it over the control tree.
"""
import argparse
import heapq
import math
import random

DIRECT, CALLS = 64, 128                       # roster_internal.h, roster_call.c
ROUND, RELAY_SECONDS, RELAY_SHARE = 1.0, 0.25, 0.7
AGAIN = 0.02
LIVING, REFUSES, SILENT = range(3)
PER_NODE = 8
HEAD = 56 + 120                               # bytes of a message, and of the reason in it


class Caller:
    """One rank that asks others: a processor, and slots for calls under way."""

    def __init__(self, o, begin, until, bits):
        self.o, self.until = o, until
        self.free = begin                     # its processor
        self.slots = []                       # when calls under way end
        self.bytes = HEAD + bits // 8 + 44
        self.calls = 0

    def call(self, when, kind, answer=None):
        """Begins at `when` or later. Returns the time at which its outcome is known. answer(t): when the other end, which has
        the question at t, has its answer."""
        if len(self.slots) >= CALLS:
            when = max(when, heapq.heappop(self.slots))
        begin = max(when, self.free)
        if begin >= self.until:
            return self.until
        self.calls += 1
        if kind == LIVING:
            self.free = begin + self.o.call + self.bytes / self.o.rate
            there = self.free + 3.5 * self.o.rtt + self.o.call
            end = (answer(there) if answer else there) + 0.5 * self.o.rtt
        elif kind == REFUSES:
            self.free = begin + self.o.call / 4
            end = self.free + self.o.rtt
        else:
            self.free = begin + self.o.call / 4
            end = self.until
        heapq.heappush(self.slots, end)
        return end


def question_round(o, begin, kinds, bits):
    """The time that one round of questions takes its leader, and its calls. kinds: of those that are asked."""
    leader = Caller(o, begin, begin + ROUND, bits)
    size = math.isqrt(len(kinds) - 1) + 1 if len(kinds) > DIRECT else 1
    end, rest = begin, []
    for i in range(0, len(kinds), size):
        group = kinds[i:i + size]

        def relayed(t, group=group):
            relay = Caller(o, t, t + 0.9 * (leader.until - t), bits)
            return max([relay.call(t, k) for k in group[1:]], default=t)

        start = max(leader.free, begin)
        done = leader.call(start, group[0], relayed)
        direct = done if group[0] == REFUSES else start + RELAY_SECONDS if group[0] == SILENT else \
            start + RELAY_SHARE * ROUND if done > start + RELAY_SHARE * ROUND else None
        if direct is not None:
            rest += [(direct, k) for k in group[1:]]
        end = max(end, done)
    for when, k in sorted(rest):
        end = max(end, leader.call(when, k))
    return end - begin, leader.calls


def turn(kinds):
    """Of the first that lives: one of each node before a second one of any."""
    order = sorted(range(len(kinds)), key=lambda r: (r % PER_NODE, r))
    k = next(i for i, r in enumerate(order) if kinds[r] == LIVING)
    return 0.2 * k if k < 3 else 0.6 + 0.02 * (k - 3)


def agreement(o, kinds):
    """(seconds, calls of the leader, bytes it sends)"""
    n = len(kinds)
    t = turn(kinds)
    news = 2 * math.log2(max(n, 2)) * (o.rtt / 2 + o.hop)   # to the last rank
    calls, rounds = 0, 0
    asked = list(kinds)
    while True:
        took, c = question_round(o, t, asked, n)
        calls, rounds = calls + c, rounds + 1
        late = t < news or rounds == 1        # asked before it has called: it comes, and is asked again
        asked = [k for k in asked if k == LIVING]
        t += took
        if not late:
            break
        t += AGAIN + min(took, 0.1) / 2
    for _ in ("accept", "commit"):
        took, c = question_round(o, t, asked, n)
        calls, rounds, t = calls + c, rounds + 1, t + took
    return t, calls, calls * (HEAD + n // 8 + 44)


def lose(n, count, what, how, seed):
    kinds = [LIVING] * n
    draw = random.Random(seed)
    if what == "leader":
        who = range(1)
    elif what == "rack":                      # neighbours, the first rank among them
        who = range(count)
    else:
        who = draw.sample(range(1, n), count)
    for r in who:
        kinds[r] = how
    return kinds


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", default="64,1000,10000,100000")
    p.add_argument("--call", type=float, default=200e-6, help="processor time of a call at each end, s")
    p.add_argument("--rtt", type=float, default=100e-6, help="round trip, s")
    p.add_argument("--hop", type=float, default=100e-6, help="of news through a rank's control thread, s")
    p.add_argument("--rate", type=float, default=125e6, help="of a link, bytes a second")
    p.add_argument("--seeds", type=int, default=5)
    o = p.parse_args()
    ranks = [int(n) for n in o.ranks.split(",")]
    cases = [("one process", 1, "any", REFUSES), ("the first rank", 1, "leader", REFUSES), ("10 processes", 10, "any", REFUSES),
             ("100 processes", 100, "any", REFUSES), ("the first rank's node", PER_NODE, "rack", SILENT),
             ("100 ranks that are silent", 100, "any", SILENT), ("a rack of 96, the first rank in it, silent", 96, "rack", SILENT)]
    print("| lost | " + " | ".join(f"{n:,}" for n in ranks) + " |")
    print("|---|" + "---|" * len(ranks))
    for name, count, what, how in cases:
        row = []
        for n in ranks:
            if 2 * count >= n:
                row.append("no majority")
                continue
            runs = [agreement(o, lose(n, count, what, how, s)) for s in range(o.seeds)]
            t, calls, sent = max(runs)
            row.append(f"{t:.2f} s, {calls:,} calls, {sent / 1e6:.2f} MB")
        print(f"| {name} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
