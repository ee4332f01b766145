#!/usr/bin/env python3
"""Breaks good plugins: what, where, when, how much and how late is drawn from a seed.

mutants.py SEED COUNT FOLDER writes mutant_NNNN.c, and prints for each: name, class, what it does. Each is a good
plugin of the tree, wrapped by tests/support/mutant.h, that breaks one rule. No class has a limit built in: what
gradcomp plugin-check cannot see is in doc/plugin/guide.md by name, and mutants.t knows those names.
"""

import math
import os
import random
import re
import sys

SRC = os.environ.get("GRADCOMP_SRC", os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
DESCRIPTOR = "GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {"

# ef: an error memory of the host's. exact: sums are floats. bare: neither parameters nor save().
BASES = {
    "examples/plugin/bf16_ef.c": "ef summed cuda bare half payloads fixed",
    "examples/plugin/cyclic.c": "ef summed exact payloads fixed",
    "examples/plugin/delta.c": "ef summed cuda bare half payloads fixed",
    "examples/plugin/fewbits.c": "ef gathered exact payloads fixed",
    "examples/plugin/shared_step.c": "ef gathered exact bare payloads fixed",
    "examples/plugin/loudest.c": "ef merged exact bare payloads fixed",
    "examples/plugin/upper.c": "ef coded exact bare",
    "plugins/compressors/topk.c": "ef gathered exact cost payloads fixed",
    "plugins/compressors/qsgd.c": "gathered unbiased cost payloads fixed",
    "plugins/compressors/natural.c": "coded unbiased cost",
    "plugins/compressors/none.c": "passes summed cost",
    "plugins/compressors/block.c": "coded ef exact cost",
}


def whole(r, low, high):
    """From low to high, of any length alike."""
    return int(round(math.exp(r.uniform(math.log(low), math.log(high)))))


def when(r, kinds=("always", "late", "step", "ranks", "numel", "tensors", "offset", "index", "layout", "one")):
    """A condition in C, and the same in words."""
    kind = r.choice(kinds)
    if kind == "late":
        n = whole(r, 2, 480)
        return f"m->decodes >= {n}", f"after {n} buckets"
    if kind == "step":
        n = whole(r, 3, 1 << 33)
        return f"step >= {n}u", f"from step {n} on"
    if kind == "ranks":
        n = r.randint(2, 33)
        return f"m->layout->nranks >= {n}", f"on {n} ranks and more"
    if kind == "one":
        return "m->layout->nranks == 1", "on one rank"
    if kind == "numel":
        n = whole(r, 2, 1 << 20)
        return f"bucket->numel >= {n}", f"in buckets of {n} numbers and more"
    if kind == "tensors":
        n = whole(r, 2, 300)
        return f"bucket->ntensors >= {n}", f"in buckets of {n} tensors and more"
    if kind == "offset":
        n = whole(r, 2, 1 << 32)
        return f"bucket->offset >= {n}u", f"from offset {n} on"
    if kind == "index":
        n = whole(r, 1, 30)
        return f"bucket->index >= {n}", f"from bucket {n} on"
    if kind == "layout":
        n = whole(r, 2, 300)
        return f"m->layout->ntensors >= {n}", f"with {n} tensors and more"
    return "1", "always"


def where(r, many=False):
    """A loop over numbers, and the same in words."""
    kind = r.choice(["all", "tail", "every", "half"] if many else ["all", "tail", "every", "half", "first", "last", "one"])
    if kind == "tail":
        n = whole(r, 1, 64)
        return f"EACH(numel > {n} ? numel - {n} : 0, numel, 1)", f"the last {n}"
    if kind == "every":
        n = r.randint(2, 9)
        return f"EACH(0, numel, {n})", f"every {n}. number"
    if kind == "half":
        return "EACH(numel / 2, numel, 1)", "the second half"
    if kind == "first":
        return "EACH(0, 1, 1)", "the first number"
    if kind == "last":
        return "EACH(numel - 1, numel, 1)", "the last number"
    if kind == "one":
        n = r.randint(1, 99)
        return f"EACH(numel * {n} / 100, numel * {n} / 100 + 1, 1)", f"the number at {n} %"
    return "EACH(0, numel, 1)", "all numbers"


def share(r):
    """How much of a number."""
    return round(r.choice([1.0, r.uniform(0.3, 1)]), 3)


# ---- classes: a function of the random numbers and the base's words -> macros, words ----


def lose_average(r, of):
    (loop, place), f = where(r, "half" in of), share(r)
    return {"DECODE": f"{loop} X(i) *= {1 - f:.3f}f"}, f"{f:.0%} of the average of {place} is lost"


def lose_memory(r, of):
    (loop, place), f = where(r, True), share(r)
    return {"DECODE": f"{loop} E(i) *= {1 - f:.3f}f"}, f"{f:.0%} of the error memory of {place} is lost"


def count_twice(r, of):
    (loop, place), f = where(r, True), share(r)
    return {"DECODE": f"{loop} E(i) += {f:.3f}f * X(i)"}, f"{f:.0%} of the average of {place} stays in error memory, too"


def rank_differs(r, of):
    (loop, place), size = where(r), r.choice([1e-7, 1e-6, 1e-4, 1e-2])
    rank = r.choice(["m->layout->rank == m->layout->nranks - 1", "m->layout->rank == 0", "m->layout->rank % 2"])
    return {
        "DECODE": f"if (m->layout->nranks > 1 && {rank}) {loop} X(i) = nextafterf(X(i) * (1 + {size}f), 9)",
        "when": ("always", "late", "step", "numel", "tensors", "offset", "index", "layout"),
    }, f"the average of {place} is rounded otherwise where {rank[11:]}"


SOURCES = {
    "pid": "uint64_t h = (uint64_t)getpid()",
    "parent": "uint64_t h = (uint64_t)getppid()",
    "user": "uint64_t h = (uint64_t)getuid()",
    "time": "uint64_t h = (uint64_t)time(NULL) / 100",
    "clock_gettime": "struct timespec ts; clock_gettime(CLOCK_REALTIME, &ts); uint64_t h = (uint64_t)ts.tv_sec / 100",
    "gettimeofday": "struct timeval tv; gettimeofday(&tv, NULL); uint64_t h = (uint64_t)tv.tv_sec / 1000",
    "monotonic": "struct timespec ts; clock_gettime(CLOCK_MONOTONIC, &ts); uint64_t h = (uint64_t)ts.tv_nsec",
    "host name": "char name[256] = {0}; gethostname(name, sizeof name - 1); uint64_t h = mutant_hash(name, strlen(name))",
    "uname": "struct utsname u; uname(&u); uint64_t h = mutant_hash(u.nodename, strlen(u.nodename))",
    "getenv": 'const char *e = getenv("MUTANT"); uint64_t h = e && !strcmp(e, "yes")',
    "getenv HOME": 'const char *e = getenv("HOME"); uint64_t h = e ? mutant_hash(e, strlen(e)) : 0',
    "environ": "uint64_t h = environ && environ[0] ? mutant_hash(environ[0], strlen(environ[0])) : 0",
    "address of code": "uint64_t h = (uint64_t)(uintptr_t)mutant_plan >> 12",
    "address of data": "static const int here; uint64_t h = (uint64_t)(uintptr_t)&here >> 12",
    "address of the stack": "uint64_t h = (uint64_t)(uintptr_t)__builtin_frame_address(0) >> 12",
    "address of the instance": "uint64_t h = (uint64_t)(uintptr_t)m >> 12",
    "address of x": "uint64_t h = (uint64_t)(uintptr_t)work->x >> 4",
}


def hangs_on(r, of):
    source = r.choice(sorted(SOURCES))
    return {
        "DECODE": f"{SOURCES[source]}; float d = mutant_share(h) * (float)(h != 0); EACH(0, 1, 1) {{ X(i) += d; E(i) -= d; }}",
        "when": ("always", "late 50", "step", "ranks 17", "numel 5000", "tensors", "offset", "layout"),
    }, f"results hang on: {source}"


def payload_length(r, of):
    n = r.choice([-1, 1, 4, 8, -4])
    return {"ENCODE": f"out->bytes += out->bytes ? {n} : 0"}, f"a payload's length is off by {n}"


def unwritten(r, of):
    n = whole(r, 1, 64)
    at = r.choice(["out->bytes - n", "0", "(out->bytes - n) / 2"])
    return {
        "ENCODE": f"uint64_t n = out->bytes < {n} ? out->bytes : {n}; if (n) memset((char *)out->data + {at}, was, n)",
    }, f"{n} bytes of a payload are not written, at {at}"


def wrong_cost(r, of):
    f = round(r.choice([r.uniform(1.6, 8), r.uniform(0.1, 0.6)]), 2)
    return {"COST": f"costs->wire_bytes *= {f}", "when": ("always", "step", "numel", "tensors")}, f"cost() is {f} times too large"


def shifts(r, of, by):
    """A change that is conserved, by what should change nothing."""
    (loop, place), size = where(r), r.choice([0.5, 0.01])
    return f"float d = {size}f * (float)({by}); {loop} {{ X(i) += d; E(i) -= d; }}", place


def unsaved(r, of):
    n = r.randint(2, 9)
    change, place = shifts(r, of, f"m->decodes % {n}")
    return {"DECODE": change}, f"a counter that is not saved shifts {place}"


def counts_early(r, of):
    n = r.randint(2, 9)
    change, place = shifts(r, of, f"m->encodes % {n}")
    if "bare" in of:
        return {"DECODE": change, "ENCODE": "m->encodes++", "SAVES": "1"}, f"encode() counts, which shifts {place}"
    return {"DECODE": change, "ENCODE": "m->encodes++"}, f"encode() counts, which shifts {place}; it is not saved"


def by_index(r, of):
    slots = r.choice([8, 64])
    what = r.choice(["X", "E"])
    return {
        "DECODE": f"uint64_t *seen = &m->seen[bucket->index % {slots}]; *seen = *seen ? *seen : numel; EACH(*seen, numel, 1) {what}(i) = 0",
        "when": ("always", "ranks", "layout"),
    }, "a bucket has as many numbers as the first of its index"


PLANS = {
    "no rounds": "wanted->nrounds = 0",
    "too many rounds": "wanted->nrounds = 9",
    "an unknown flag": "wanted->rounds[0].flags |= 1u << 9",
    "a reserved word": "wanted->rounds[0].reserved[1] = 1",
    "a reserved word of an element": "wanted->rounds[0].reserved0 = 1",
    "a type that is none": "wanted->rounds[0].dtype = 99; wanted->rounds[0].bound++",
    "far too much scratch": "wanted->scratch_bytes = UINT64_MAX / 2",
    "a length below zero": "wanted->rounds[0].count = wanted->rounds[0].bound = (uint64_t)-8",
    "an unknown pattern": "wanted->rounds[0].pattern = 7",
    "a positive status": "st = 1",
}


def wrong_plan(r, of):
    what = r.choice(sorted(PLANS))
    return {"PLAN": PLANS[what], "when": ("always", "step", "ranks", "numel", "tensors", "offset", "index", "layout")}, f"plan() gives {what}"


DESCRIPTORS = {
    "no version": (r'\.version = "[^"]*"', '.version = ""'),
    "no licence": (r'\.licence = "[^"]*"', '.licence = ""'),
    "a summary of two lines": (r'\.summary = "', '.summary = "\\\\n'),
    "an unknown trait": (r"\.traits = ", ".traits = 1u << 20 | "),
    "a trait that contradicts": (r"\.traits = ", ".traits = GRADCOMP_TRAIT_LOSSLESS | GRADCOMP_TRAIT_OWN_MOMENTUM | "),
    "an unknown pattern": (r"\.patterns = ", ".patterns = 1u << 9 | "),
    "a newer ABI": (r"\.abi_version = ", ".abi_version = 1 + "),
    "a longer struct": (r"\.struct_size = ", ".struct_size = 64 + "),
    "a reserved word": (r"\.create = ", ".reserved = {0, 1}, .create = "),
    "no decode": (r"\.decode = \w+", ".decode = NULL"),
    "no plan": (r"\.plan = \w+", ".plan = NULL"),
    "nine state arrays": (r"\.create = ", ".state_arrays = 9, .create = "),
}


def wrong_descriptor(r, of):
    what = r.choice(sorted(DESCRIPTORS))
    return {"sub": [DESCRIPTORS[what]], "when": ("always",)}, f"the descriptor has {what}"


def wrong_parameter(r, of):
    kind = r.choice(["create", "step", "range", "words"])
    high = whole(r, 2, 10**6)
    row = f'{{.name = "mutant", .type = GRADCOMP_PARAM_INT, .def = "1", .min = 1, .max = {high}, .help = "any"}}'
    out = {"PARAMS": "1", "params": row, "when": ("always",)}
    if kind == "range":
        out["params"] = row.replace('.def = "1"', f'.def = "{high + 1}"')
        return out, "the default is out of its own range"
    n = r.randint(2, high)
    if kind == "create":
        out["CREATE_FIRST"] = f"if (values[0].f >= {n}. || values[0].i >= {n}) return GRADCOMP_ERR_INVALID"
    elif kind == "words":
        out["CREATE_FIRST"] = f"if (values[0].i >= {n}) {{ *instance = (void *)1; return GRADCOMP_ERR_NOMEM; }}"
    else:
        out["CREATE"] = "m->value = (double)values[0].i"
        out["DECODE_FIRST"] = f'if (m->value >= {n}) return m->host->fail(err, GRADCOMP_ERR_RANGE, "mutant: too large")'
    return out, f"mutant={n} and more of at most {high} does not work ({kind})"


def out_of_bounds(r, of):
    n = r.randint(0, 63)
    spots = {
        "behind x": ("DECODE", f"((volatile char *)&X(numel - 1))[{4 + n}] = 1"),
        "before x": ("DECODE", f"((volatile char *)&X(0))[-{1 + n}] = 1"),
        "behind the instance": ("DECODE", f"((volatile char *)(m + 1))[{n}] = 1"),
        "before the instance": ("DECODE", f"((volatile char *)m)[-{1 + n}] = 1"),
        "far behind the instance": ("DECODE", f"((volatile char *)(m + 1))[{64 * n}] = 1"),
        "far before the instance": ("DECODE", f"((volatile char *)m)[-{64 * (1 + n)}] = 1"),
    }
    if "payloads" in of:
        spots["behind the payload"] = ("ENCODE", f"((volatile char *)out->data)[out->capacity + {n}] = 1")
        spots["before the payload"] = ("ENCODE", f"((volatile char *)out->data)[-{1 + n}] = 1")
        spots["behind scratch"] = ("ENCODE", f"if (work->scratch_bytes) ((volatile char *)work->scratch)[work->scratch_bytes + {n}] = 1")
    if "ef" in of:
        spots["behind error memory"] = ("DECODE", f"((volatile char *)&E(numel - 1))[{4 + n}] = 1")
        spots["before error memory"] = ("DECODE", f"((volatile char *)&E(0))[-{1 + n}] = 1")
        if "payloads" in of:
            spots["to error memory in encode()"] = ("ENCODE", "if (numel) E(numel - 1) = 0")
    if "payloads" in of:
        spots["to x in encode()"] = ("ENCODE", "if (numel) X(0) = 0")
    what = r.choice(sorted(spots))
    return {spots[what][0]: spots[what][1]}, f"writes {what} ({n})"


def trusts_length(r, of):
    n = r.choice([1, 4])
    kinds = [
        (f"if (n > 1 && in[1].bytes) {{ volatile char c = ((const volatile char *)in[1].data)[wanted.rounds[round].bound - {n}]; (void)c; }}", "a length"),
        (
            "if (n > 1 && in[m->layout->rank ? 0 : 1].bytes != wanted.rounds[round].bound) return GRADCOMP_ERR_MISMATCH",
            "its words, when it refuses",
        ),
        (
            "if (n > 1 && in[m->layout->rank ? 0 : 1].bytes != wanted.rounds[round].bound) X(0) = ((volatile float *)NULL)[in[0].bytes]",
            "that it is right, or crashes",
        ),
    ]
    code, what = r.choice(kinds)
    return {"DECODE_FIRST": code, "when": ("always", "step", "ranks 3")}, f"takes for granted of a peer's payload: {what}"


def trusts_code(r, of):
    code = "if (bytes) { volatile char c = ((const volatile char *)in)[BASE_code_bound(m->base, numel) - 1]; (void)c; }"
    return {"CODE_DECODE_FIRST": code, "when": ("always",)}, "reads as much of a code as its bound"


def trusts_merged(r, of):
    return {
        "MERGE_FIRST": "const uint32_t *p = b->data; for (uint64_t i = 0; i < b->bytes / 8; i++) if (p[2 * i + 1] < 16 || p[2 * i + 1] > 64) "
        "{ volatile char c = ((const volatile char *)b->data)[p[2 * i + 1]]; (void)c; }",
        "when": ("always",),
    }, "merge() looks at the place that a peer names"


def loads_wrong(r, of):
    kind = r.choice(["all", "early", "room", "silent"])
    out = {"SAVES": "1", "when": ("always",)}
    if kind == "all":
        out["LOADS_ALL"] = "1"
    elif kind == "early":
        out["LOAD_FIRST"] = "m->encodes = bytes ? 1 + *(const unsigned char *)in : 7"
    elif kind == "room":
        out["SAVES_ANYWHERE"] = "1"
    else:
        out["LOAD_FIRST"] = "if (bytes != MUTANT_SAVED) return GRADCOMP_ERR_INVALID"
    return out, f"load() and save() check too little ({kind})"


def shares(r, of):
    n = r.randint(2, 9)
    kind = r.choice(["static", "static array"])
    change, place = shifts(r, of, f"mutant_all[0] % {n}")
    return {
        "GLOBAL": f"static uint64_t mutant_all[{1 if kind == 'static' else r.randint(2, 999)}];",
        "DECODE": f"mutant_all[0]++; {change}",
    }, f"a {kind} counter shifts {place}"


def threads(r, of):
    kinds = ["local", "stack"] + (["merge"] if "merged" in of else [])
    kind = r.choice(kinds)
    if kind == "stack":
        n = r.randint(520, 900)
        return {
            r.choice(["DECODE_FIRST"] + (["ENCODE_FIRST"] if "payloads" in of else [])): f"volatile char deep[{n} << 10]; for (size_t i = 0; i < sizeof deep; i += 4096) deep[i] = 1",
            "when": ("always", "late 10", "numel 4000", "layout 7"),
        }, f"{n} KiB of stack"
    if kind == "merge":
        return {"MERGE": "m->decodes++", "when": ("always", "ranks", "numel 5000", "step")}, "merge() writes to the instance"
    change, place = shifts(r, of, "mutant_mine++ % 5")
    return {"GLOBAL": "static _Thread_local uint64_t mutant_mine;", "DECODE": change}, f"a _Thread_local counter shifts {place}"


CALLS = {
    # Through a volatile: a compiler leaves out a pair that nobody looks at.
    "malloc": "void *volatile p = malloc(64); free(p)",
    "calloc": "void *volatile p = calloc(8, 8); free(p)",
    "host->alloc": "m->host->release(m->host->alloc(64))",
    "usleep": "usleep(1)",
    "nanosleep": "nanosleep(&(struct timespec){0, 1}, NULL)",
    "printf": 'printf("mutant\\n")',
    "puts": 'puts("mutant")',
    "open": 'close(open("/dev/null", O_RDONLY))',
    "fopen": 'FILE *f = fopen("/dev/null", "r"); if (f) fclose(f)',
    "mutex": "static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; pthread_mutex_lock(&mutex); pthread_mutex_unlock(&mutex)",
    "rand": "(void)rand()",
    "random": "(void)random()",
    "yield": "sched_yield()",
    "strdup": 'void *volatile p = strdup("mutant"); free(p)',
    "a write to stdout": 'if (write(1, "m", 1)) {}',
    "fork": "pid_t p = fork(); if (!p) _exit(0)",
    "popen": 'FILE *f = popen("true", "r"); if (f) pclose(f)',
    "a thread": "pthread_t t; if (!pthread_create(&t, NULL, mutant_thread, NULL)) pthread_join(t, NULL)",
}


def unsteady(r, of):
    what = r.choice(sorted(CALLS))
    at = r.choice(["DECODE"] + (["ENCODE"] if "payloads" in of else []))
    out = {at: CALLS[what]}
    if what == "a thread":
        out["GLOBAL"] = "static void *mutant_thread(void *p) { return p; }"
    return out, f"{at.lower()}() calls {what}"


def leaks(r, of):
    kind = r.choice(["host", "malloc", "unchecked", "twice", "null", "member"])
    out = {"when": ("always",)}
    n = whole(r, 1, 5000)
    if kind in ("host", "malloc"):
        take = f"(void)m->host->alloc({n})" if kind == "host" else f"char *volatile p = malloc({n}); (void)p"
        out = {"CREATE": take, "when": ("always", "create ranks", "create layout")}
    elif kind == "unchecked":
        out["CREATE"] = f"char *p = host->alloc({n}); p[0] = 1; host->release(p)"
    elif kind == "twice":
        out["DESTROY"] = "m->host->release(m->base)" if "bare" not in of else "char *p = m->host->alloc(1); m->host->release(p); m->host->release(p)"
    elif kind == "null":
        out["CREATE"] = f"if (!host->alloc({n})) st = GRADCOMP_ERR_NOMEM"
    else:
        out["CREATE"] = f'char *p = host->alloc({n}), *q = host->alloc({n}); if (p && !q) st = host->fail(err, GRADCOMP_ERR_NOMEM, "mutant: no memory"); else {{ host->release(p); host->release(q); }}'
    return out, f"memory: {kind}, {n} bytes"


def hangs(r, of):
    at = r.choice(["DECODE"] + (["ENCODE", "PLAN"] if "payloads" in of else []))
    return {at: "for (volatile int i = 0; ;) (void)i"}, f"{at.lower()}() does not return"


def biased(r, of):
    (loop, place), f = where(r, True), round(r.choice([r.uniform(0.5, 1), -r.uniform(0.5, 1)]), 2)
    return {"DECODE": f"{loop} X(i) *= 1 + {f}f", "when": ("always", "step", "numel 60", "ranks 2")}, f"{place} are {1 + f:.2f} times what is right on average"


def swallows(r, of):
    kinds = {
        "NaN becomes 0": "EACH(0, numel, 1) if (isnan(X(i))) X(i) = 0",
        "Inf becomes the largest": "EACH(0, numel, 1) if (isinf(X(i))) X(i) = X(i) > 0 ? 3.4e38f : -3.4e38f",
        "Inf becomes NaN": "EACH(0, numel, 1) if (isinf(X(i))) X(i) = NAN",
        "NaN spreads": "EACH(1, numel, 1) if (isnan(X(i - 1))) X(i) = NAN",
    }
    what = r.choice(sorted(kinds))
    return {"DECODE": kinds[what], "when": ("always", "ranks 3", "numel 4000"), "never in place": True}, what


def wrong_code(r, of):
    n = whole(r, 1, 64)
    kinds = {
        "a code longer than its bound": {"CODE": f"*bytes = BASE_code_bound(m->base, numel) + {n}"},
        "a bound beyond the largest": {"BOUND": f"4 * numel + numel / 64 + 64 + {n}"},
        "decode_add that sets": {"CODE_DECODE_ADD": "if (numel) { float was = out[numel - 1]; BASE_code_decode(m->base, in, bytes, out, numel, err); (void)was; }"},
        "the end is not decoded": {"CODE_DECODE": f"for (uint64_t i = numel > {n} ? numel - {n} : 0; i < numel; i++) out[i] = 0"},
        "the end is decoded twice": {"CODE_DECODE_ADD": f"for (uint64_t i = numel > {n} ? numel - {n} : 0; i < numel; i++) out[i] *= 2"},
        "writes behind what is decoded": {"CODE_DECODE": f"((volatile char *)(out + numel))[{n - 1}] = 1"},
        "writes before what is decoded": {"CODE_DECODE_ADD": f"((volatile char *)out)[-{n}] = 1"},
        "writes behind the code": {"CODE": f"((volatile char *)out)[BASE_code_bound(m->base, numel) + {n - 1}] = 1"},
        "large runs lose": {"CODE_DECODE_ADD": f"if (numel > {whole(r, 20, 60000)}) out[numel - 1] = 0"},
        "an Inf is held": {"CODE_DECODE": "for (uint64_t i = 0; i < numel; i++) out[i] = isfinite(out[i]) ? out[i] : 1e38f",
                           "CODE_DECODE_ADD": "for (uint64_t i = 0; i < numel; i++) out[i] = isfinite(out[i]) ? out[i] : 1e38f"},
    }
    what = r.choice(sorted(kinds))
    return dict(kinds[what], when=("always",)), what


def touches(r, of):
    at, code = r.choice(
        [
            ("DECODE", "EACH(0, 1, 1) X(i) = X(i) + 0"),
            ("ENCODE", "if (numel) { volatile float v = work->flat[0]; (void)v; }"),
            ("ENCODE", "if (out->bytes) { volatile char v = *(char *)out->data; (void)v; }"),
            ("DECODE", "if (in[0].bytes) { volatile char v = *(const char *)in[0].data; (void)v; }"),
            ("ENCODE", "if (work->scratch_bytes) memset(work->scratch, 0, 1)"),
        ]
    )
    return {at: f"if (work->device == GRADCOMP_CUDA) {{ {code}; }}", "was": False, "when": ("always", "ranks 3", "numel 4000", "step 2")}, f"{at.lower()}() touches device memory"


STATE = {
    "chdir": 'if (chdir("/")) {}',
    "setlocale": 'setlocale(LC_ALL, "C.UTF-8")',
    "setenv": 'setenv("MUTANT", "1", 1)',
    "signal": "signal(SIGUSR1, SIG_IGN)",
    "umask": "umask(0)",
    "rounding": "fesetround(FE_UPWARD)",
    "a descriptor": 'if (open("/dev/null", O_RDONLY) < 0) {}',
    "srand": "srand(1)",
    "alarm": "alarm(1000)",
    "nice": "if (nice(1)) {}",
    "rlimit": "struct rlimit l = {100, 100}; setrlimit(RLIMIT_NOFILE, &l)",
    "mask": "sigset_t s; sigemptyset(&s); sigaddset(&s, SIGTERM); sigprocmask(SIG_BLOCK, &s, NULL)",
    "getenv": 'm->value = getenv("MUTANT_DEBUG") != NULL',
    "exit": "exit(0)",
    "stderr": "dup2(1, 2)",
}


def changes_process(r, of):
    what = r.choice(sorted(STATE))
    return {"CREATE": STATE[what], "when": ("always", "create ranks", "create layout")}, f"create() changes or asks: {what}"


def exports(r, of):
    name = r.choice(["helper", "encode", "compress", "mutant_table", "init"])
    code = r.choice([f"GRADCOMP_EXPORT int {name}(void); int {name}(void) {{ return 1; }}", f"GRADCOMP_EXPORT extern const int {name}[4]; const int {name}[4] = {{1}};"])
    return {"GLOBAL": code.replace(name, f"x_{name}"), "when": ("always",)}, f"exports x_{name}"


def same_noise(r, of):
    subs = [
        ("qsgd", r"sdk_random_stream\(t->layout, work->step\)", "sdk_random_stream(t->layout, 0)", "every step draws the same"),
        ("qsgd", r"sdk_random_stream\(t->layout, work->step\)", "sdk_random_stream(t->layout, work->step / 2)", "two steps draw the same"),
        ("qsgd", r"sdk_random_stream\(t->layout, work->step\)", "work->step", "every rank draws the same"),
        ("natural", r"p->seed, counter", "p->seed, 0", "every run draws the same"),
        ("natural", r"sdk_random_rank_seed\(layout\)", "layout->seed", "every rank draws the same"),
    ]
    base, pattern, to, what = r.choice(subs)
    return {"base": base, "sub": [(pattern, to)], "when": ("always",)}, what


CLASSES = [
    # name, words that the base must have, words that it must not have, function
    ("conservation: average", "", "unbiased", lose_average),
    ("conservation: memory", "ef exact", "coded", lose_memory),
    ("conservation: twice", "ef exact", "coded", count_twice),
    ("agreement: rank", "", "", rank_differs),
    ("agreement: process", "ef", "coded", hangs_on),
    ("bytes: length", "payloads", "", payload_length),
    ("bytes: unwritten", "payloads", "", unwritten),
    ("bytes: cost", "cost", "", wrong_cost),
    ("resume", "ef", "coded", unsaved),
    ("decode-only", "ef payloads", "", counts_early),
    ("tensors", "ef exact", "coded", by_index),
    ("descriptor: plan", "", "", wrong_plan),
    ("descriptor", "", "", wrong_descriptor),
    ("parameters", "bare", "", wrong_parameter),
    ("bounds", "", "", out_of_bounds),
    ("peers: gathered", "gathered", "", trusts_length),
    ("peers: coded", "coded", "cost", trusts_code),
    ("peers: merged", "merged", "", trusts_merged),
    ("saved-state", "bare", "", loads_wrong),
    ("globals", "ef", "coded", shares),
    ("threads", "ef", "coded", threads),
    ("steady", "", "", unsteady),
    ("memory", "", "", leaks),
    ("time", "", "", hangs),
    ("unbiased", "unbiased gathered", "", biased),
    ("nonfinite", "passes", "", swallows),
    ("code", "coded", "", wrong_code),
    ("device", "cuda payloads", "", touches),
    ("process", "", "", changes_process),
    ("process: exports", "", "", exports),
    ("noise", "unbiased", "", same_noise),
]


def condition(r, kinds):
    """One of the kinds; "late 50": at most so many."""
    kind = r.choice(kinds)
    words = kind.split()
    if words[0] == "create":
        n = r.randint(2, 17) if words[1] == "ranks" else whole(r, 2, 300)
        field = "nranks" if words[1] == "ranks" else "ntensors"
        return f"layout->{field} >= {n}", f"with {n} {words[1]} and more"
    if len(words) == 1:
        return when(r, (kind,))
    n = whole(r, 1, int(words[1]))
    names = {"late": ("m->decodes", "buckets"), "numel": ("bucket->numel", "numbers"), "ranks": ("m->layout->nranks", "ranks"),
             "layout": ("m->layout->ntensors", "tensors"), "step": ("step", "steps")}
    return f"{names[words[0]][0]} >= {n}", f"from {n} {names[words[0]][1]} on"


def sound(r, of):
    return {"when": ("always",)}, "nothing is broken"


def write(r, number, folder, cls, base=None):
    name, needs, lacks, make = cls
    bases = [base] if base else [b for b, words in BASES.items() if set(needs.split()) <= set(words.split()) and not set(lacks.split()) & set(words.split())]
    base = r.choice(bases)
    macros, words = make(r, BASES[base].split())
    if "base" in macros:
        base = next(b for b in BASES if os.path.basename(b) == macros["base"] + ".c")
    kinds = macros.get("when", ("always", "late", "step", "ranks", "numel", "tensors", "offset", "index", "layout", "one"))
    cond, told = condition(r, kinds)
    text = open(os.path.join(SRC, base), encoding="utf-8").read()
    for pattern, to in [s for s in macros.get("sub", []) if not s[0].startswith(r"\.")]:
        text, n = re.subn(pattern, to, text)
        assert n, f"{base} has no {pattern}"
    head, descriptor = text.split(DESCRIPTOR)
    mutant = f"mutant_{number:04d}"
    lines = [f"/* {name}: {words}, {told} ({base}). */", head]
    for function, own in re.findall(r"\.(create|destroy|plan|encode|decode|merge|code_bound|code|code_decode|code_decode_add|code_on|cost|choice|measured) = (\w+)", descriptor):
        lines.append(f"#define BASE_{function} {own}")
        descriptor = re.sub(rf"\.{function} = {own}\b", f".{function} = mutant_{function}", descriptor)
    descriptor = re.sub(r'\.name = "[^"]*"', f'.name = "{mutant}"', descriptor)
    for pattern, to in [s for s in macros.get("sub", []) if s[0].startswith(r"\.")]:
        descriptor, n = re.subn(pattern, to, descriptor, count=1)
        assert n, f"{base}'s descriptor has no {pattern}"
    if "params" in macros:
        descriptor = re.sub(r"\.licence = ", ".params = mutant_params, .nparams = 1, .licence = ", descriptor)
    if "SAVES" in macros:
        descriptor = descriptor.replace(".create = ", ".save = mutant_save, .load = mutant_load, .create = ")
    lines.append(f"#define M_WHEN ({cond})")
    for key, code in macros.items():
        if key.isupper():
            lines.append(f"#define M_{key} {code}")
    lines.append('#include "tests/support/mutant.h"')
    if "params" in macros:
        lines.append(f"static const gradcomp_param mutant_params[] = {{{macros['params']}}};")
    lines.append(DESCRIPTOR + descriptor)
    with open(os.path.join(folder, mutant + ".c"), "w", encoding="utf-8") as f:
        f.write("\n".join(lines))
    return mutant, name, f"{words}, {told} ({os.path.basename(base)[:-2]})"


def main():
    seed, count, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    r = random.Random(seed)
    # Each class as often as another, in an order that is drawn.
    order = []
    while len(order) < count:
        order += r.sample(CLASSES, len(CLASSES))
    for number in range(count):
        print("\t".join(write(r, number, folder, order[number])))
    bases = sorted(BASES) if count >= 100 else r.sample(sorted(BASES), 2)
    for number, base in enumerate(bases, count):
        print("\t".join(write(r, number, folder, ("none", "", "", sound), base)))


main()
