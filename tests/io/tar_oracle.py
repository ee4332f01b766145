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


lib.gradcomp_samples_count.restype = ctypes.c_uint64
lib.gradcomp_samples_class.restype = ctypes.c_char_p


def call(name, *arguments):
    err = Error()
    if getattr(lib, "gradcomp_samples_" + name)(*arguments, ctypes.byref(err)):
        raise RuntimeError(err.text.decode(errors="replace"))


def samples(path):
    """[(key, label, [(name, data), ...]), ...] and the classes, as the library reads them."""
    s, found, classes = ctypes.c_void_p(), [], []
    call("open", os.fsencode(path), None, ctypes.byref(s))
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
        tar = tarfile.open(fileobj=io.BytesIO(archive))
        by_offset = {m.offset: tar.extractfile(m).read() for m in tar if m.isreg()}
        for key, parts in got:
            parts = [(name, by_offset[m.offset]) for name, m in parts]
            if len({n for n, _ in parts}) != len(parts):
                return "twice", where
            want.append((key, label_of(parts), parts))
    found, classes = samples(where)
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
    assert samples(where) == (want, names), (seed, number)
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
            if any(len({n for n, _ in parts}) != len(parts) for _, parts in got):
                continue
            assert samples(archive)[0] == [(k, label_of(p), p) for k, p in got], (seed, number, program, form)
            count += 1
    return count


def main():
    tars, trees, programs, twice = 0, 0, 0, 0
    for i in range(rounds):
        n, where = try_tar(i)
        if n == "twice":
            twice += 1
            try:
                samples(where)
                raise AssertionError("a part that comes twice was taken: seed %d, round %d" % (seed, i))
            except RuntimeError as e:
                assert "which the sample has already" in str(e), e
        else:
            tars += n
        trees += try_tree(i)
        programs += by_program(i) if i % 4 == 0 else 0
    print("%d samples of tar, %d of trees, %d archives of programs, %d refused" % (tars, trees, programs, twice))
    assert tars > rounds and trees > rounds and programs > rounds / 4


main()
