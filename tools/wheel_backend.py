"""A wheel of gradcomp: the Python package with libgradcomp, its plugins and the command in it.

pip calls build_wheel() and the other hooks of PEP 517 (`pip install .`); `make wheel` calls main().
Both run configure and make, so the wheel has what the machine has headers for. No package is
needed, so nothing is fetched.

In the wheel, and in site-packages, gradcomp/ is the prefix: lib/libgradcomp.so.0, lib/gradcomp/
with the plugins, bin/gradcomp, share/gradcomp. Libraries are linked statically where they have an
archive; what a plugin or module needs beside them is looked for where it is used. Slurm's plugin
is no part of it: the site installs that.
"""

import base64
import glob
import hashlib
import io
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONFIGURE = ["--prefix=/usr", "--sysconfdir=/etc", "--localstatedir=/var", "--enable-relocatable",
             "--enable-static-libs", "--without-slurm"]
# The libraries that become a part of ours: their licences go with it.
STATIC = ("inih", "xxhash", "sodium", "munge", "jansson", "lz4", "zstd", "zfp", "nfs")


def _text(*path):
    """Of a file, in the source folder unless its path is absolute."""
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as f:
        return f.read()


def _version():
    return _text("VERSION").strip()


def _metadata():
    fields = _text("python", "METADATA.in").replace("@VERSION@", _version())
    return f"{fields}Description-Content-Type: text/markdown\n\n{_text('README.md')}"


def _entry_points():
    return f"[console_scripts]\ngradcomp = gradcomp.__main__:main\n\n{_text('python', 'entry_points.txt')}"


# ---- what is built --------------------------------------------------------


def _build(work, arguments):
    """configure, make and make install; the folder that stands for /usr."""
    build, root, done = (os.path.join(work, name) for name in ("build", "root", "configured"))
    os.makedirs(build, exist_ok=True)
    # What goes into a wheel is not debugged there.
    env = {"CFLAGS": "-O2", **os.environ}
    # Each GPU takes nvcc a minute or more, and others compile what they need from PTX.
    native = [] if "CUDA_ARCHS" in env else ["CUDA_ARCHS=native"]
    configure = [os.path.join(SOURCE, "configure"), *CONFIGURE, *native, *arguments]
    make = ["make", "--no-print-directory"]
    if "MAKEFLAGS" not in env:
        make.append(f"-j{len(os.sched_getaffinity(0))}")

    def run(command):
        # What these say is not the answer of a hook, or of main().
        subprocess.run(command, cwd=build, env=env, check=True, stdout=sys.stderr)

    # Where the same has been configured already, nothing is compiled again. So one that was interrupted goes on.
    if not os.path.exists(done) or _text(done) != shlex.join(configure):
        run(configure)
        with open(done, "w", encoding="utf-8") as f:
            f.write(shlex.join(configure))
    for command in ([*make, "all"], ["rm", "-rf", root], [*make, "install", "DESTDIR=" + root]):
        run(command)
    return os.path.join(root, "usr")


def _files(usr):
    """(name in the wheel, file) of what belongs to the package."""
    for name in sorted(os.listdir(usr + "/lib/gradcomp")):
        if name != "python":
            for file in sorted(glob.glob(f"{usr}/lib/gradcomp/{name}/*.so")):
                yield f"gradcomp/lib/gradcomp/{name}/{os.path.basename(file)}", file
    # The name that programs are linked with; the others are links, which a wheel has not.
    yield "gradcomp/lib/libgradcomp.so.0", os.path.realpath(usr + "/lib/libgradcomp.so.0")
    yield "gradcomp/bin/gradcomp", usr + "/bin/gradcomp"
    for top, below in (("gradcomp/share/gradcomp/models", "/share/gradcomp/models"),
                       ("gradcomp", "/lib/gradcomp/python/gradcomp")):
        for folder, _, names in sorted(os.walk(usr + below)):
            for name in sorted(names):
                file = os.path.join(folder, name)
                yield os.path.normpath(os.path.join(top, os.path.relpath(folder, usr + below), name)), file


def _licences(usr):
    """Those of the libraries that are in it, as Debian has them."""
    made = _text(usr + "/../../build/config.mk")
    for name in STATIC:
        found = re.search(rf"^{name.upper()}_LIBS = .*-l:lib(\S+)\.a", made, re.M)
        file = f"/usr/share/doc/lib{found.group(1)}-dev/copyright" if found else ""
        if os.path.exists(file):
            yield f"licenses/{name}.txt", file


# ---- for which machines ---------------------------------------------------

GLIBC = re.compile(r"lib(c|m|dl|rt|pthread)\.so|ld-linux")


def _platform(files):
    """manylinux_2_N where the library and the command need glibc 2.N and nothing else, so that pip keeps it from
    older machines. A plugin or module may need more: then it alone cannot be loaded where that is missing."""
    platform, newest, whole = sysconfig.get_platform().replace("-", "_").replace(".", "_"), 0, True
    for name, file in files:
        if not name.startswith(("gradcomp/lib/", "gradcomp/bin/")):
            continue
        said = subprocess.run(["objdump", "-p", file], check=True, capture_output=True, text=True).stdout
        newest = max([newest, *(int(n) for n in re.findall(r"\bGLIBC_2\.(\d+)", said))])
        others = [n for n in re.findall(r"^ *NEEDED +(\S+)", said, re.M) if not GLIBC.match(n)]
        if others:
            print(f"{name} needs {', '.join(others)} where it is used", file=sys.stderr)
            whole = whole and name.startswith("gradcomp/lib/gradcomp/")
    return platform.replace("linux_", f"manylinux_2_{newest}_", 1) if whole else platform


# ---- archives -------------------------------------------------------------


def _date():
    """Of everything in an archive: SOURCE_DATE_EPOCH, else VERSION's."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or os.stat(os.path.join(SOURCE, "VERSION")).st_mtime)


def _wheel(usr, folder):
    """Writes the wheel of an installed tree into `folder`; its name."""
    files, info = list(_files(usr)), f"gradcomp-{_version()}.dist-info/"
    tag = f"py3-none-{_platform(files)}"
    name = f"gradcomp-{_version()}-{tag}.whl"
    texts = {"METADATA": _metadata(), "entry_points.txt": _entry_points(),
             "WHEEL": f"Wheel-Version: 1.0\nGenerator: gradcomp ({_version()})\nRoot-Is-Purelib: false\nTag: {tag}\n"}
    files += [(info + to, file) for to, file in _licences(usr)] + [(info + "licenses/LICENSE", SOURCE + "/LICENSE")]
    record = []
    date = time.gmtime(max(_date(), 315532800))[:6]  # of a zip: 1980 and later
    temporary = os.path.join(folder, name + ".part")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:

        def put(to, data, mode=0o644):
            entry = zipfile.ZipInfo(to, date)
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{to},sha256={digest},{len(data)}\n")

        for to, file in files:
            with open(file, "rb") as f:
                put(to, f.read(), 0o755 if os.access(file, os.X_OK) else 0o644)
        for to, text in texts.items():
            put(info + to, text.encode())
        record.append(info + "RECORD,,\n")
        put(info + "RECORD", "".join(record).encode())
    os.replace(temporary, os.path.join(folder, name))
    return name


# ---- PEP 517 --------------------------------------------------------------


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """`pip install . --config-settings configure="--without-munge ..."` gives configure more."""
    del metadata_directory
    arguments = shlex.split((config_settings or {}).get("configure", ""))
    with tempfile.TemporaryDirectory(prefix="gradcomp-wheel-") as work:
        return _wheel(_build(work, arguments), wheel_directory)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """Without building anything."""
    del config_settings
    info = f"gradcomp-{_version()}.dist-info"
    os.makedirs(os.path.join(metadata_directory, info), exist_ok=True)
    for name, text in (("METADATA", _metadata()), ("entry_points.txt", _entry_points())):
        with open(os.path.join(metadata_directory, info, name), "w", encoding="utf-8") as f:
            f.write(text)
    return info


def build_sdist(sdist_directory, config_settings=None):
    """The archive of `make dist`, and PKG-INFO in it."""
    del config_settings
    name = f"gradcomp-{_version()}"
    with tempfile.TemporaryDirectory(prefix="gradcomp-sdist-") as work:
        for command in ([SOURCE + "/configure"], ["make", "dist"]):
            subprocess.run(command, cwd=work, check=True, stdout=sys.stderr)
        with tarfile.open(f"{work}/{name}.tar.gz") as made, \
                tarfile.open(os.path.join(sdist_directory, name + ".tar.gz"), "w:gz", format=tarfile.PAX_FORMAT) as out:
            for member in made:
                out.addfile(member, made.extractfile(member) if member.isfile() else None)
            data = _metadata().encode()
            entry = tarfile.TarInfo(name + "/PKG-INFO")
            entry.size, entry.mtime = len(data), _date()
            out.addfile(entry, io.BytesIO(data))
    return name + ".tar.gz"


def main(work, folder, *arguments):
    """The wheel in `folder`, made in `work`, which is kept for the next time."""
    print(_wheel(_build(os.path.abspath(work), arguments), folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
