#!/usr/bin/python3
"""gradcomp.keras on Keras's backends: the example on two ranks and in one process with the batch of both; fit(), checkpoints, apply() and
bad input on two ranks, of which one dies. JAX and PyTorch take turns from day to day; in check-long both, and TensorFlow."""

import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import BUILD, SOURCE, WHOLE, current, done_testing, environment, in_part, need_library, ok, ranks, skip_all, things  # noqa: E402

need_library()
PACKAGES = os.path.join(SOURCE, "python")


def backends():
    """(backend, python, what PYTHONPATH has) of each; of PyTorch that is its own python, and Keras of the other."""
    jax, why = current("jax")
    if jax is None:
        skip_all(why)
    keras = subprocess.run([jax, "-c", "import importlib.util as u; print(u.find_spec('keras').origin)"], stdout=subprocess.PIPE, text=True,
                           check=True).stdout.strip()
    torch, why = current("torch")
    if torch is None:
        print(f"# without PyTorch: {why}")
    kinds = [("jax", jax, PACKAGES), *([("torch", torch, f"{PACKAGES}:{os.path.dirname(os.path.dirname(keras))}")] if torch else [])]
    kinds = [kind for i, kind in enumerate(kinds) if in_part(i, len(kinds))]
    if WHOLE:
        tensorflow, why = current("tensorflow")
        kinds += [("tensorflow", tensorflow, PACKAGES)] if tensorflow else []
        print(f"# without TensorFlow: {why}" if why else "# with TensorFlow")
    return kinds


def loss(python, nranks, *options, **more):
    """What the example ends with."""
    command = [python, os.path.join(SOURCE, "examples/keras/fit.py"), *options]
    got = subprocess.run([os.path.join(BUILD, "bin/gradcomp"), "run", "-n", str(nranks), *command] if nranks > 1 else command,
                         env=environment(**more), capture_output=True, text=True, timeout=300, check=False)
    said = re.search(r"loss ([0-9.]+)", got.stdout)
    if not ok(got.returncode == 0 and said, f"{more['KERAS_BACKEND']}: the example, {nranks} ranks", got.stdout, got.stderr[-2000:]):
        done_testing()
    return float(said[1])


for backend, python, path in backends():
    with tempfile.TemporaryDirectory() as folder:
        more = {"KERAS_BACKEND": backend, "KERAS_HOME": folder, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
        two, one = loss(python, 2, "--epochs", "8", **more), loss(python, 1, "--epochs", "8", "--batch", "128", **more)
        ok(abs(two - one) < 1e-4, f"{backend}: two ranks end where one process with the batch of both does: {two} and {one}")
        whole = "yes" if WHOLE or backend != "jax" else "no"
        got = ranks(2, [os.path.join(SOURCE, "tests/python/keras_ranks.py"), folder, whole], timeout=120, python=python, **more)
    things(got, f"{backend} on two ranks", [0, -9])
done_testing()
