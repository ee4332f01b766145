"""Random trees and tar archives, read by libgradcomp and by Python's tarfile under the
rules of WebDataset: the same samples, parts and bytes, from tar and from a folder.

    tar_oracle.py BUILD FOLDER SEED ROUNDS
"""
import ctypes
import io
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile

build, folder, seed, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
lib = ctypes.CDLL(build + "/lib/libgradcomp.so")
draw = random.Random(seed)


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * 508)]


class Info(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("nparts", ctypes.c_uint32), ("label", ctypes.c_int32),
                ("reserved0", ctypes.c_uint32), ("bytes", ctypes.c_uint64), ("key", ctypes.c_char_p)]


class Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("format", ctypes.c_int), ("suffixes", ctypes.c_char_p),
                ("workers", ctypes.c_uint32), ("reserved0", ctypes.c_uint32)]


lib.gradcomp_samples_count.restype = ctypes.c_uint64
lib.gradcomp_samples_class.restype = ctypes.c_char_p


def call(name, *arguments):
    err = Error()
    if getattr(lib, "gradcomp_samples_" + name)(*arguments, ctypes.byref(err)):
        raise RuntimeError(err.text.decode(errors="replace"))


def samples(path, format=0):
    """[(key, label, [(name, data), ...]), ...] and the classes, as the library reads them."""
    s, found, classes = ctypes.c_void_p(), [], []
    options = Options(ctypes.sizeof(Options), format)
    call("open", os.fsencode(path), ctypes.byref(options), ctypes.byref(s))
    for i in range(lib.gradcomp_samples_count(s)):
        info, parts = Info(ctypes.sizeof(Info)), []
        index = ctypes.c_uint64(i)
        call("info", s, index, ctypes.byref(info))
        for p in range(info.nparts):
            name, n, got = ctypes.c_char_p(), ctypes.c_uint64(), ctypes.c_uint64()
            call("part", s, index, p, ctypes.byref(name), ctypes.byref(n))
            data = ctypes.create_string_buffer(max(n.value, 1))
            call("read", s, index, p, data, n, ctypes.byref(got))
            parts.append((name.value, data.raw[:got.value]))
        assert info.bytes == sum(len(d) for _, d in parts)
        found.append((info.key, info.label, parts))
    while (c := lib.gradcomp_samples_class(s, len(classes))) is not None:
        classes.append(c)
    lib.gradcomp_samples_close(s)
    return found, classes


def label_of(parts):
    for name, data in parts:
        if name == b"cls" and len(data) <= 16 and re.fullmatch(rb"[0-9]+", data.rstrip(b"\n\r ")):
            value = int(data)
            return value if value < 2**31 else -1
    return -1


def expected(archives):
    found = []
    for data in archives:
        key = None
        for member in tarfile.open(fileobj=io.BytesIO(data), mode="r|"):
            name = os.fsencode(member.name)
            if not member.isreg() or re.match(rb"__[^/]*__($|/)", name):
                continue
            match = re.match(rb"(?s)((?:.*/|)[^./][^./]*)[.]([^/]*)\Z", name)
            if match is None:
                continue
            if match[1] != key:
                key = match[1]
                found.append((key, []))
            found[-1][1].append((match[2].lower(), member))
    return found


def fault(groups):
    """What is wrong with the samples [(key, parts)] of an archive; "" nothing. WebDataset stops at a part that comes
    twice; parts that stand apart it takes for samples, which nobody means."""
    if any(len({n for n, _ in parts}) != len(parts) for _, parts in groups):
        return "which the sample has already"
    return "tar --sort=name" if len({key for key, _ in groups}) != len(groups) else ""


def refused(path, words):
    try:
        samples(path, 2)
    except RuntimeError as e:
        assert words in str(e), (seed, path, str(e), words)
        return
    raise AssertionError("taken, and should not be (%s): seed %d, %s" % (words, seed, path))


def random_name(longest, dots=True):
    letters = [b"a", b"b", b"\xff", b"\n", b"-", b"\xc3\xa9", b" ", b"\\", b"%", b"_"] + [b"."] * dots
    while True:
        name = b"".join(draw.choice(letters) for _ in range(draw.randint(1, longest)))
        if name not in (b".", b".."):
            return name


def random_data():
    return draw.randbytes(draw.choice([0, 1, 511, 512, 513, draw.randint(0, 9000)]))


def random_archive(form):
    """An archive by tarfile, and what is in it."""
    out, content = io.BytesIO(), []
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for _ in range(draw.randint(0, 12)):
            kind = draw.random()
            deep = b"/".join(random_name(20) for _ in range(draw.randint(0, 3 if form == tarfile.USTAR_FORMAT else 12)))
            base = (deep + b"/" if deep else b"") + random_name(8, dots=False)
            if kind < 0.1:
                member = tarfile.TarInfo(os.fsdecode(base))
                member.type = draw.choice([tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
                tar.addfile(member)
                continue
            for suffix in draw.sample([b"jpg", b"cls", b"JSON", b"seg.png", b"", b"x"], draw.randint(1, 5)):
                data = draw.choice([b"%d" % draw.randint(0, 3 * 10**9), b"cat", b"7\n"]) if suffix == b"cls" else random_data()
                member = tarfile.TarInfo(os.fsdecode(base + (b"." + suffix if draw.random() < 0.95 else b"")))
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
                content.append((os.fsencode(member.name), data))
    return out.getvalue(), content


def try_tar(number):
    where = os.path.join(folder, "tar%d" % number)
    os.mkdir(where)
    archives, data = [], []
    for i in range(draw.randint(1, 3)):
        archive, content = random_archive(draw.choice([tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
        with open(os.path.join(where, "%d.tar" % i), "wb") as f:
            f.write(archive)
        archives.append(archive)
        data.append([d for n, d in content])
    want = []
    for archive in archives:
        got = expected([archive])
        if fault(got):
            refused(os.path.join(where, "%d.tar" % archives.index(archive)), fault(got))
            return "fault", where
        tar = tarfile.open(fileobj=io.BytesIO(archive))
        by_offset = {m.offset: tar.extractfile(m).read() for m in tar if m.isreg()}
        for key, parts in got:
            parts = [(name, by_offset[m.offset]) for name, m in parts]
            want.append((key, label_of(parts), parts))
    found, classes = samples(where, 2)
    assert found == want and classes == [], (seed, number, found[:3], want[:3])
    return len(want), where


def walk(top):
    for at, folders, files in os.walk(top):
        folders[:] = [f for f in folders if not f.startswith(b".")]
        for name in files:
            if not name.startswith(b"."):
                yield os.path.relpath(os.path.join(at, name), top)


def try_tree(number):
    where = os.fsencode(os.path.join(folder, "tree%d" % number))
    os.mkdir(where)
    for _ in range(draw.randint(0, 30)):
        at = os.path.join(where, *(random_name(6) for _ in range(draw.randint(0, 4))))
        try:
            os.makedirs(at, exist_ok=True)
            with open(os.path.join(at, random_name(9)), "xb") as f:
                f.write(random_data())
        except OSError:
            continue
    if any(n.endswith(b".tar") for n in os.listdir(where)):
        return 0
    names = sorted(n for n in os.listdir(where) if os.path.isdir(os.path.join(where, n)) and not n.startswith(b"."))
    want = []
    for path in sorted(walk(where)):
        first = path.split(b"/")[0]
        with open(os.path.join(where, path), "rb") as f:
            want.append((path, names.index(first) if b"/" in path else -1, [(b"", f.read())]))
    assert samples(where, 1) == (want, names), (seed, number)
    return len(want)


def by_program(number):
    """The tree just made, packed by tar programs, against the names in it."""
    where, count = os.path.join(folder, "tree%d" % number), 0
    for program, forms in (("tar", ["gnu", "oldgnu", "pax", "posix", "ustar"]), ("bsdtar", ["gnutar", "pax", "ustar"])):
        for form in forms if shutil.which(program) else []:
            archive = os.path.join(folder, "p.tar")
            command = [program, "--format", form, "-cf", archive, "-C", where, "."]
            if subprocess.run(command, stderr=subprocess.DEVNULL).returncode:
                continue
            with open(archive, "rb") as f:
                data = f.read()
            tar = tarfile.open(fileobj=io.BytesIO(data))
            by_offset = {m.offset: tar.extractfile(m).read() for m in tar if m.isreg()}
            got = [(key, [(n, by_offset[m.offset]) for n, m in parts]) for key, parts in expected([data])]
            if fault(got):
                refused(archive, fault(got).split(" ")[0])
                continue
            assert samples(archive)[0] == [(k, label_of(p), p) for k, p in got], (seed, number, program, form)
            count += 1
    return count


def by_real_tar(number):
    """A dataset as people make it, pairs of files in one folder or in one a class, packed by tar in the order of the
    directory, in any other and sorted: what WebDataset would take for the samples, or a refusal."""
    where = os.path.join(folder, "real%d" % number)
    names = []
    for i in range(draw.randint(2, 12)):
        at = draw.choice(["", "%d/" % draw.randint(0, 2)])
        for suffix, data in (("jpg", random_data()), ("cls", b"%d" % i)):
            names.append("%s%04d.%s" % (at, i, suffix))
            os.makedirs(os.path.dirname(os.path.join(where, names[-1])), exist_ok=True)
            with open(os.path.join(where, names[-1]), "wb") as f:
                f.write(data)
    pairs = len(names) // 2
    shuffled = draw.sample(names, len(names))
    archive, halves = os.path.join(folder, "real.tar"), 0
    for arguments in (["."], ["--sort=name", "."], ["--sort=inode", "."], shuffled):
        subprocess.run(["tar", "-cf", archive, "-C", where, *arguments], check=True)
        with open(archive, "rb") as f:
            got = expected([f.read()])
        if fault(got):
            halves += 1
            refused(archive, fault(got))
        else:
            found = samples(archive)[0]
            assert [k for k, _, _ in found] == [k for k, _ in got], (seed, number, arguments)
            assert len(found) == pairs and all(label >= 0 and len(parts) == 2 for _, label, parts in found)
        assert arguments[0] != "--sort=name" or not fault(got)
    return halves


def braces(number):
    """A random pattern, against what bash makes of it."""
    def piece(depth):
        kind = draw.random()
        if kind < 0.25 and depth < 3:
            return "{" + ",".join(piece(depth + 1) for _ in range(draw.randint(2, 3))) + "}"
        if kind < 0.5:
            a, width = draw.randint(0, 11), draw.choice(["%d", "%02d", "%03d"])
            return "{" + width % a + ".." + draw.choice(["%d", width]) % (a + draw.randint(0, 3)) + "}"
        return draw.choice(["a", "b", "tr", "-", "_", "0", "x.y"]) + draw.choice(["", piece(depth)])

    where = os.path.join(folder, "braces%d" % number)
    os.mkdir(where)
    pattern = piece(0) + piece(1)
    words = subprocess.run(["bash", "-c", "printf '%s\\n' " + pattern], capture_output=True, text=True, check=True).stdout.split()
    if len(words) > 200 or len(set(words)) != len(words) or "{" not in pattern:
        return 0
    for word in words:
        with tarfile.open(os.path.join(where, word), "w") as tar:
            tar.addfile(tarfile.TarInfo(word.replace(".", "") + ".x"))
    found = [k.decode() for k, _, _ in samples(os.path.join(where, pattern))[0]]
    assert found == [word.replace(".", "") for word in words], (seed, number, pattern, found)
    return 1


def main():
    real, patterns = sum(by_real_tar(i) for i in range(rounds // 3)), sum(braces(i) for i in range(rounds))
    tars, trees, programs, twice = 0, 0, 0, 0
    for i in range(rounds):
        n, where = try_tar(i)
        if n == "fault":
            twice += 1
        else:
            tars += n
        trees += try_tree(i)
        programs += by_program(i) if i % 4 == 0 else 0
    print("%d samples of tar, %d of trees, %d archives of programs, %d and %d refused, %d patterns" %
          (tars, trees, programs, twice, real, patterns))
    assert real > rounds / 8 and patterns > rounds / 4, (real, patterns)
    assert tars > rounds and trees > rounds and programs > rounds / 4


main()
