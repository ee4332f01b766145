"""A dataset of real files of this machine, as a tree and as tar shards, and staging
it on four nodes from an NFS server behind a shaped link, beside plain copies of it."""

import hashlib
import os
import shutil
import tarfile
import tempfile
import time
from statistics import median

import collectives
from testbed import Cluster, Failed, environment, run, say

FILES, BYTES = 20000, 2 << 30
ROOTS = ("/usr/include", "/usr/lib", "/usr/share")
SHARD = 256 << 20
LARGE = 256 << 10


def _found():
    """(size, path) of regular files, in an order that has nothing to do with names."""
    found = []
    for root in ROOTS:
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path) and not os.path.islink(path) and 0 < os.path.getsize(path) < (64 << 20):
                    found.append((os.path.getsize(path), path))
    return sorted(found, key=lambda f: hashlib.md5(f[1].encode(errors="surrogateescape")).digest())


def build(folder, quick=False):
    """Copies files into folder/tree and packs them into folder/tar; (files, bytes)."""
    least_files, least_bytes = (2000, 200 << 20) if quick else (FILES, BYTES)
    tree, shards = os.path.join(folder, "tree"), os.path.join(folder, "tar")
    files = total = 0
    os.makedirs(shards)
    for size, path in _found():
        if files >= least_files and (total >= least_bytes or size < LARGE):
            if total >= least_bytes:
                break
            continue
        place = os.path.join(tree, f"{files // 100:04d}")
        os.makedirs(place, exist_ok=True)
        shutil.copyfile(path, os.path.join(place, f"{files:06d}.bin"))
        files += 1
        total += size
    if files < least_files or total < least_bytes:
        raise Failed(f"this machine has only {files} files of {total} bytes below {', '.join(ROOTS)}")
    shard = used = 0
    out = None
    for part in sorted(os.listdir(tree)):
        if out is None or used > SHARD:
            if out:
                out.close()
            out = tarfile.open(os.path.join(shards, f"{shard:03d}.tar"), "w")
            shard, used = shard + 1, 0
        for name in sorted(os.listdir(os.path.join(tree, part))):
            path = os.path.join(tree, part, name)
            out.add(path, os.path.join(part, name))
            used += os.path.getsize(path)
    out.close()
    return files, total


def _size(folder):
    return sum(os.path.getsize(os.path.join(f, n)) for f, _, names in os.walk(folder) for n in names)


# Prints how long a command took and its peak resident KiB.
WATCHED = """import resource, subprocess, sys, time
start = time.monotonic()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"""
URL = "nfs://10.77.0.253/export"


def fresh(cluster):
    """Empty caches, a tmpfs a node: all nodes would share this machine's one disk."""
    for node in range(1, cluster.nodes + 1):
        cluster.run_on(node, "sh", "-c", "umount /var/tmp/gradcomp 2>/dev/null; mkdir -p /var/tmp/gradcomp && "
                       "mount -t tmpfs -o mode=1777,size=6g tmpfs /var/tmp/gradcomp")


def _served(cluster):
    """(bytes of file data the server has read, bytes that have left its interface)."""
    return int(cluster.nfs("bytes")), cluster.counted_by_name()["nfs"][0]


def _stage(cluster, part, together=True):
    """Seconds of an srun that stages `part` and starts `true`; what the server gave;
    what the slowest stager says of itself."""
    before, start = _served(cluster), time.monotonic()
    cluster.srun(f"--gradcomp-stage={URL}/{part}?version=4", "true", timeout=900,
                 env={"GRADCOMP_STAGE_TOGETHER": "yes" if together else "no"})
    seconds = time.monotonic() - start
    return seconds, tuple(a - b for a, b in zip(_served(cluster), before))


def _plain(cluster, names):
    """Seconds of four copies at a time of tar shards by libnfs's nfs-cp. It names
    itself to the server by its pid, which must differ between the nodes."""
    script = 'i=0; while [ $i -lt $((7 * $0)) ]; do /bin/true; i=$((i + 1)); done; for name; do ' \
             f'nfs-cp "{URL}/tar/$name?version=4" "/var/tmp/gradcomp/$name" || exit 1; done'
    start = time.monotonic()
    copies = [cluster.start(k, "sh", "-c", script, str(k), *names) for k in range(1, cluster.nodes + 1)]
    for copy in copies:
        copy.communicate()
        if copy.returncode:
            raise Failed(f"nfs-cp ended with {copy.returncode}")
    return time.monotonic() - start


def _same(cluster, folder, part):
    """The copy on the last node is the dataset."""
    said = cluster.srun(f"--gradcomp-stage={URL}/{part}?version=4", "sh", "-c",
                        '[ "$SLURM_PROCID" != 3 ] || diff -r "$GRADCOMP_DATA" "$0" && echo same',
                        os.path.join(folder, part), timeout=300)
    if said.split() != ["same"] * cluster.nodes:
        raise Failed(f"the staged copy of {part} differs: {said}")


def _memory(cluster, part):
    """Peak resident bytes of the stager that needed most."""
    said = cluster.srun("--mpi=pmix", "python3", "-c", WATCHED, "gradcomp", "stage", "--quiet", "--pmix",
                        f"{URL}/{part}?version=4", timeout=900)
    return max(int(line.split()[1]) for line in said.splitlines()) * 1024


def dataset(folder, quick):
    """(place, files, bytes) of the dataset below `folder`, built the first time."""
    data = os.path.join(folder, "data")
    if not os.path.exists(data):
        files, total = build(data, quick)
        say(f"bench: a dataset of {files} files, {total / 1e9:.2f} GB")
    tree = os.path.join(data, "tree")
    return data, sum(len(names) for _, _, names in os.walk(tree)), _size(tree)


def _listing(args):
    """Seconds and peak memory of listing very many small files."""
    number = 100000 if args.quick else 1000000
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gradcomp-bench-") as folder:
        for i in range(number):
            if i % 1000 == 0:
                place = os.path.join(folder, f"n{i // 1000:08d}")
                os.mkdir(place)
            os.close(os.open(os.path.join(place, f"sample_{i:08d}.jpeg"), os.O_CREAT | os.O_WRONLY, 0o644))
        said = [run(["python3", "-c", WATCHED, "gradcomp", "stage", "--quiet", "--dry-run", folder],
                    environment(args.prefix), 300).split() for _ in range(args.runs)]
    seconds, resident = median([float(s) for s, _ in said]), max(int(m) for _, m in said) / 1024
    bench = f"listing {number} files in memory"
    yield {"bench": bench, "case": "time", "value": seconds, "unit": "s", "peer": "promised", "peer_value": 10.0,
           "ratio": seconds / 10, "limit": 1.0}
    yield {"bench": bench, "case": "memory", "value": resident, "unit": "MiB", "peer": "promised", "peer_value": 200.0,
           "ratio": resident / 200, "limit": 1.0}


def figures(args, folder):
    yield from _listing(args)
    data, _, total = dataset(folder, args.quick)
    with Cluster(args.name, args.prefix, nfs=data) as cluster:
        cluster.rate("1gbit")
        plain = median(_runs(args, lambda: fresh(cluster) or _plain(cluster, sorted(os.listdir(os.path.join(data, "tar"))))))
        yield from _parts(args, cluster, data, total, plain)


def _runs(args, once):
    return [once() for _ in range(args.runs)]


def _parts(args, cluster, data, total, plain):
    idle = median(_runs(args, lambda: _timed(lambda: cluster.srun("true"))))
    goodput = collectives.goodput(cluster)
    for part, size in (("tree", total), ("tar", _size(os.path.join(data, "tar")))):
        bench = f"staging {size / 1e9:.2f} GB ({part}) on 4 nodes, 1 Gbit/s"
        cold = _runs(args, lambda: fresh(cluster) or _stage(cluster, part))
        seconds = median([t for t, _ in cold])
        read, sent = (median([c[1][k] for c in cold]) for k in (0, 1))
        yield {"bench": bench, "case": "read from the server's files", "value": read / 1e6, "unit": "MB",
               "peer": "dataset", "peer_value": size / 1e6, "ratio": read / size, "limit": 1.02, "least": 1.0}
        yield {"bench": bench, "case": "sent by the server", "value": sent / 1e6, "unit": "MB",
               "peer": "dataset", "peer_value": size / 1e6, "ratio": sent / size}
        yield {"bench": bench, "case": "cold, whole srun", "value": seconds, "unit": "s",
               "peer": "dataset over the link, and an srun", "peer_value": size / goodput + idle,
               "ratio": seconds / (size / goodput + idle), "limit": 1.15}
        if part == "tar":
            yield {"bench": bench, "case": "cold, whole srun", "value": seconds, "unit": "s",
                   "peer": "4 nfs-cp at a time", "peer_value": plain, "ratio": seconds / plain, "limit": 1 / 2.5}
        _same(cluster, data, part)
        warm = _runs(args, lambda: _stage(cluster, part))
        yield {"bench": bench, "case": "again, more than an srun without", "value": (median([t for t, _ in warm]) - idle) * 1e3,
               "unit": "ms", "peer": "promised", "peer_value": 300,
               "ratio": (median([t for t, _ in warm]) - idle) / 0.3, "limit": 1.0}
        again = max(w[1][0] for w in warm)
        yield {"bench": bench, "case": "again, read from the server's files", "value": again / 1e6, "unit": "MB",
               "peer": "dataset", "peer_value": size / 1e6, "ratio": again / size, "limit": 0.0001}  # listings
        fresh(cluster)
        resident = _memory(cluster, part)
        yield {"bench": bench, "case": "memory of a stager", "value": resident / 2**20, "unit": "MiB", "peer": "promised",
               "peer_value": 64, "ratio": resident / 2**20 / 64, "limit": 1.0}
    fresh(cluster)
    alone = _stage(cluster, "tree", together=False)[0]
    yield {"bench": f"staging {total / 1e9:.2f} GB (tree) on 4 nodes, 1 Gbit/s", "case": "each node for itself, one run",
           "value": alone, "unit": "s", "peer": "4 times the dataset over the link", "peer_value": 4 * total / goodput,
           "ratio": alone * goodput / total / 4}


def _timed(call):
    start = time.monotonic()
    call()
    return time.monotonic() - start
