"""What each compressor must compute, in float64 with numpy, written from the
papers and not from the plugins. A method is a function

    method(ranks, us, before) -> (average, errors)

of the ranks' u = gradient + error memory (lists of float64 vectors, the error
memory as it was read back) and the state of rank 0 before the step. `errors` is
None for a method without error memory. NaN in `average` stands for "any".
"""

import numpy as np


def mean(us):
    return np.sum(us, axis=0) / len(us)


def dense(_ranks, us, _before):
    return mean(us), None


def rounded(dtype):
    """Every rank rounds, the sums are rounded too: compare to a few roundings."""
    def method(_ranks, us, _before):
        return np.sum([to_type(u, dtype) for u in us], axis=0) / len(us), None
    return method


def cast(dtype):
    """Every rank rounds, and the mean is rounded. Where it is close to the middle of two numbers of the type it may
    be either."""
    def method(ranks, us, before):
        return to_type(rounded(dtype)(ranks, us, before)[0], dtype), None
    return method


def to_type(x, dtype):
    if dtype == "fp16":
        return x.astype(np.float16).astype(np.float64)
    bits = x.astype(np.float32).view(np.uint32)
    nearest = bits + 0x7fff + ((bits >> 16) & 1)
    return (nearest & 0xffff0000).astype(np.uint32).view(np.float32).astype(np.float64)


def largest(u, k):
    """The places of the k largest magnitudes, ties to the lower index."""
    return np.sort(np.lexsort((np.arange(len(u)), -np.abs(u)))[:k])


def kept(density, d):
    return 0 if d == 0 else min(d, max(1, int(density * d + 0.5)))


def shares(us, chosen):
    """Each rank sends u at its chosen places and keeps the rest."""
    sent = [np.where(np.isin(np.arange(len(u)), c), u, 0) for u, c in zip(us, chosen)]
    return mean(sent), [u - s for u, s in zip(us, sent)]


def topk(density):
    return lambda _ranks, us, _before: shares(us, [largest(u, kept(density, len(u))) for u in us])


def blocktopk(density, block):
    """The blocks of largest sum of magnitudes over all ranks; the last may be shorter."""
    def method(_ranks, us, _before):
        d = len(us[0])
        block_of = np.arange(d) // block
        sums = np.bincount(block_of, np.sum(np.abs(us), axis=0))
        chosen = np.flatnonzero(np.isin(block_of, largest(sums, kept(density, len(sums)))))
        return shares(us, [chosen] * len(us))
    return method


def layerwise(density):
    def method(ranks, us, _before):
        chosen = []
        for u in us:
            at, places = 0, []
            for part in ranks.pieces(u):
                places.append(at + largest(part.ravel(), kept(density, part.size)))
                at += part.size
            chosen.append(np.concatenate(places))
        return shares(us, chosen)
    return method


def gtopk(density):
    """A tree of sums that keep k; what a merge drops stays with the rank that made
    it. Ranks above the largest power of two come first to those below; then
    neighbours at distance 1, 2, 4, ..., the lower one merging."""
    def method(_ranks, us, _before):
        k, P = kept(density, len(us[0])), len(us)
        held, errors = [], []
        for u in us:
            s = np.zeros_like(u)
            s[largest(u, k)] = u[largest(u, k)]
            held.append((s, set(largest(u, k))))
            errors.append(u - s)

        def merge(to, other):
            total, places = held[to][0] + held[other][0], sorted(held[to][1] | held[other][1])
            keep = np.array(places)[largest(total[places], k)]
            left = np.setdiff1d(places, keep)
            errors[to][left] += total[left]
            total[left] = 0
            held[to] = (total, set(keep))
        whole = 1 << (P.bit_length() - 1)
        for r in range(whole, P):
            merge(r - whole, r)
        distance = 1
        while distance < whole:
            for r in range(0, whole, 2 * distance):
                merge(r, r + distance)
            distance *= 2
        return held[0][0] / P, errors
    return method


def dgc(density, momentum=0.9, nesterov=False, clip=0.0):
    """The gradient comes bare; the memory is m, then v. Matrices send the largest of
    v, tensor by tensor; vectors get their momentum after the mean."""
    def method(ranks, gs, before):
        P, d = len(gs), ranks.numel
        average, memories = np.zeros(d), [s[:2 * d].astype(np.float64) for s in before]
        at = 0
        for part in ranks.pieces(gs[0]):
            here = slice(at, at + part.size)
            if part.ndim < 2:
                total = mean([g[here] for g in gs])
                for s in memories:
                    m = momentum * (s[here] + total) if nesterov else momentum * s[here] + total
                    s[here] = m
                average[here] = memories[0][here] + (total if nesterov else 0)
            else:
                for g, s in zip(gs, memories):
                    g, m, v = g[here], s[here], s[d + at:d + at + part.size]
                    limit, norm = clip / np.sqrt(P), np.linalg.norm(g)
                    if clip and norm > limit:
                        g = g * (limit / norm)
                    m[:] = momentum * (m + g) if nesterov else momentum * m + g
                    v += m + (g if nesterov else 0)
                    sent = largest(v, kept(density, part.size))
                    average[at + sent] += v[sent] / P
                    m[sent] = v[sent] = 0
            at += part.size
        return average, memories
    return method


def cosines(n):
    """The orthonormal DCT-II of n numbers, a coefficient a row."""
    b, j = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
    return np.sqrt(np.where(b, 2, 1) / n) * np.cos(np.pi * (2 * j + 1) * b / (2 * n))


def demo(chunk, k):
    """DeMo that forgets nothing: the k largest coefficients of each chunk of each matrix."""
    def sent(ranks, u):
        out = []
        for part in ranks.pieces(u):
            matrix = part.reshape(part.shape[0] if part.ndim > 1 else 1, -1)
            result = np.zeros_like(matrix)
            for i in range(0, matrix.shape[0], chunk):
                for j in range(0, matrix.shape[1], chunk):
                    x = matrix[i:i + chunk, j:j + chunk]
                    rows, columns = cosines(x.shape[0]), cosines(x.shape[1])
                    q = rows @ x @ columns.T
                    q.ravel()[np.setdiff1d(np.arange(q.size), largest(q.ravel(), min(k, q.size)))] = 0
                    result[i:i + chunk, j:j + chunk] = rows.T @ q @ columns
            out.append(result.ravel())
        return np.concatenate(out)

    def method(ranks, us, _before):
        q = [sent(ranks, u) for u in us]
        return mean(q), [u - s for u, s in zip(us, q)]
    return method


def threshold(t):
    def method(_ranks, us, _before):
        sent = [np.where(u >= t, t, np.where(u <= -t, -t, 0)) for u in us]
        return mean(sent), [u - s for u, s in zip(us, sent)]
    return method


def signed(two_means):
    """Signs and a scale: for every run, the means of both classes, or one mean
    magnitude. A run is a tensor for the second; for the first it is a row of a
    matrix, or as many rows as have 32 numbers, or a vector."""
    def method(ranks, us, _before):
        sent = []
        for u in us:
            parts = []
            for part in ranks.pieces(u):
                length = part.size
                if two_means and part.ndim > 1:
                    row = part.size // part.shape[0]
                    length = -(-32 // row) * row if row < 32 else row
                flat = part.ravel()
                out = np.zeros_like(flat)
                for at in range(0, flat.size, max(length, 1)):
                    run, low = flat[at:at + length], flat[at:at + length] < 0
                    if two_means:
                        out[at:at + length][low] = run[low].mean() if low.any() else 0
                        out[at:at + length][~low] = run[~low].mean() if (~low).any() else 0
                    else:
                        out[at:at + length] = np.where(low, -1, 1) * np.abs(run).mean()
                parts.append(out)
            sent.append(np.concatenate(parts))
        return mean(sent), [u - s for u, s in zip(us, sent)]
    return method


def orth(a):
    """An orthonormal basis of a's columns; all that is asked of one is its span."""
    return np.linalg.qr(a)[0]


def compressible(shape, rank, min_ratio=2):
    if len(shape) < 2:
        return 0
    n, m = shape[0], int(np.prod(shape[1:]))
    r = min(n, m, rank)
    return 0 if (n + m) * r * min_ratio >= n * m else r


def powersgd(rank):
    """Q of the compressed tensors stands at the end of the state, layout order."""
    def method(ranks, us, before):
        average, errors = [], [[] for _ in us]
        shapes = list(reversed(ranks.shapes))
        sizes = [int(np.prod(s[1:])) * compressible(s, rank) for s in shapes]
        factors = before[0][len(before[0]) - sum(sizes):].astype(np.float64)
        at = 0
        for t, shape in enumerate(shapes):
            ms = [ranks.pieces(u)[t].reshape(shape[0], -1) for u in us]
            r = compressible(shape, rank)
            if not r:
                average.append(mean(ms).ravel())
                for e in errors:
                    e.append(np.zeros(ms[0].size))
                continue
            q = orth(factors[at:at + sizes[t]].reshape(-1, r))
            at += sizes[t]
            p = orth(mean([m @ q for m in ms]))
            average.append((p @ (p.T @ mean(ms))).ravel())
            for e, m in zip(errors, ms):
                e.append((m - p @ (p.T @ m)).ravel())
        return np.concatenate(average), [np.concatenate(e) for e in errors]
    return method


def acpsgd(rank):
    """Steps 0, 2, ... send P of the Q that the state ends with; steps 1, 3, ... Q of
    the P before it."""
    def method(ranks, us, before, step):
        average, errors = [], [[] for _ in us]
        shapes = list(reversed(ranks.shapes))
        ranked = [(s[0], int(np.prod(s[1:])), compressible(s, rank)) for s in shapes]
        p_size, q_size = sum(n * r for n, _, r in ranked), sum(m * r for _, m, r in ranked)
        saved = before[0][len(before[0]) - p_size - q_size:].astype(np.float64)
        factors, at = (saved[:p_size], 0) if step % 2 else (saved[p_size:], 0)
        for t, (n, m, r) in enumerate(ranked):
            ms = [ranks.pieces(u)[t].reshape(n, -1) for u in us]
            side = n if step % 2 else m
            basis = orth(factors[at:at + side * r].reshape(side, r)) if r else None
            at += side * r

            def project(a, basis=basis):
                return basis @ (basis.T @ a) if step % 2 else (a @ basis) @ basis.T
            average.append((project(mean(ms)) if r else mean(ms)).ravel())
            for e, a in zip(errors, ms):
                e.append((a - project(a) if r else np.zeros_like(a)).ravel())
        return np.concatenate(average), [np.concatenate(e) for e in errors]
    return method


def between(u, k, samplings):
    """MSTopK's two thresholds: more than k reach the lower, at most k the upper."""
    a = np.abs(u)
    mu, top = a.mean(), a.max()
    base, span = (0, mu) if k > (a >= mu).sum() else (mu, top - mu)
    lo, hi, k1, t1, k2, t2 = 0.0, 1.0, 0, np.inf, len(a), 0.0
    for _ in range(samplings):
        q = (lo + hi) / 2
        t = base + q * span
        z = (a >= t).sum()
        if z <= k:
            hi = q
            if z > k1:
                k1, t1 = z, t
        else:
            lo = q
            if z < k2:
                k2, t2 = z, t
        if z == k:
            break
    return t1, t2
