#!/usr/bin/python3
"""The ctypes binding: the header's structures to the byte, errors, collectives."""

import ctypes
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import SOURCE, done_testing, environment, error_of, need_library, ok, pace  # noqa: E402

need_library()
os.environ.update(environment())
sys.path.insert(0, os.environ["PYTHONPATH"])
import gradcomp  # noqa: E402
from gradcomp import _data_lib, _lib  # noqa: E402

STRUCTURES = {"gradcomp_error": _lib.ErrorText, "gradcomp_store": _lib.Store, "gradcomp_job_options": _lib.JobOptions,
              "gradcomp_tensor_desc": _lib.TensorDesc, "gradcomp_reducer_options": _lib.ReducerOptions,
              "gradcomp_survivors": _lib.Survivors, "gradcomp_memory_options": _lib.MemoryOptions, "gradcomp_call": _lib.Call,
              "gradcomp_reducer_stats": _lib.ReducerStats, "gradcomp_coder_options": _lib.CoderOptions,
              "gradcomp_coder_stats": _lib.CoderStats, "gradcomp_samples_options": _data_lib.SamplesOptions,
              "gradcomp_sample_info": _data_lib.SampleInfo, "gradcomp_value_buffer": _data_lib.ValueBuffer,
              "gradcomp_dataset_options": _data_lib.DatasetOptions, "gradcomp_value_view": _data_lib.ValueView,
              "gradcomp_dataset_stats": _data_lib.DatasetStats}
CONSTANTS = {"GRADCOMP_" + n: getattr(_lib, n) for n in
             ("F32", "F16", "BF16", "F64", "I32", "I64", "U8", "I8", "I16", "SUM", "MAX", "MIN", "BOR", "PRODUCT", "BAND", "BXOR", "AVG",
              "ANY_RANK", "ERR_INVALID",
              "ERR_NOMEM", "ERR_NOTFOUND", "ERR_UNSUPPORTED", "ERR_ABI", "ERR_IO", "ERR_MISMATCH", "ERR_PEER", "ERR_STATE", "ERR_INTERNAL",
              "ERR_PEER_LOST")}
CONSTANTS.update({"GRADCOMP_SAMPLES_" + name.upper(): number for name, number in _data_lib.FORMATS.items()})
CONSTANTS.update({"GRADCOMP_CALL_" + n: getattr(_lib, n) for n in
                  ("BARRIER", "ALLREDUCE", "REDUCE", "BROADCAST", "ALLGATHER", "GATHER", "SCATTER", "REDUCE_SCATTER", "ALLTOALL", "SEND", "RECV")})


def in_c(field):
    """A field's name, which may be a word of Python's there."""
    return field.rstrip("_")


def header_says(folder):
    """{expression: value} as the C compiler sees the header."""
    expressions = list(CONSTANTS)
    for c, py in STRUCTURES.items():
        expressions += [f"sizeof({c})"] + [f"offsetof({c},{in_c(f[0])})" for f in py._fields_]
    source, program = os.path.join(folder, "h.c"), os.path.join(folder, "h")
    with open(source, "w", encoding="ascii") as f:
        f.write('#include <stdio.h>\n#include "gradcomp/gradcomp.h"\n'
                '#include "gradcomp/coder.h"\n#include "gradcomp/dataset.h"\n#include "gradcomp/samples.h"\nint main(void)\n{\n')
        f.writelines(f'\tprintf("{e} %ld\\n", (long)({e}));\n' for e in expressions)
        f.write("\treturn 0;\n}\n")
    subprocess.run([*os.environ.get("CC", "cc").split(), "-I", os.path.join(SOURCE, "include"), "-o", program, source], check=True)
    out = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {line.split()[0]: int(line.split()[1]) for line in out.splitlines()}


with tempfile.TemporaryDirectory() as folder:
    header = header_says(folder)
for name, value in CONSTANTS.items():
    ok(header[name] == value, f"{name} is {header[name]}", f"python has {value}")
for name, py in STRUCTURES.items():
    ok(header[f"sizeof({name})"] == ctypes.sizeof(py), f"size of {name}", ctypes.sizeof(py))
    wrong = [f for f, *_ in py._fields_ if header[f"offsetof({name},{in_c(f)})"] != getattr(py, f).offset]
    ok(not wrong, f"fields of {name}", wrong)


def python(code, **more):
    return subprocess.run([sys.executable, "-c", code], env=environment(**more), capture_output=True, text=True,
                          timeout=60 * pace())


with open(os.path.join(SOURCE, "VERSION"), encoding="ascii") as f:
    ok(gradcomp.__version__ == f.read().strip(), "the package has the version of the file VERSION", gradcomp.__version__)
r = python("import gradcomp; print(gradcomp.requested()); gradcomp.version()", GRADCOMP_LIBRARY="/nonexistent/lib.so")
ok(r.stdout == "False\n", "without the library, importing works and nothing is requested", r.stdout, r.stderr)
ok("gradcomp._lib.Error" in r.stderr and "/nonexistent/lib.so" in r.stderr, "its first use says which file is missing",
   r.stderr)
for value, wanted in (("off", "False"), ("none", "True"), ("topk:density=0.1", "True")):
    r = python("import gradcomp; print(gradcomp.requested())", GRADCOMP=value)
    ok(r.stdout.strip() == wanted, f"GRADCOMP={value}: requested is {wanted}", r.stderr)


e = error_of(gradcomp.Job, settings=["nothing.such=1"])
ok(e is not None and e.status < 0 and "nothing.such" in str(e), "an unknown setting is an Error that names it", e)
job = gradcomp.Job(settings=["gradcomp.log=error"])
ok((job.rank, job.nranks) == (0, 1), "a job of one")
ok(isinstance(job.host(0), str) and job.host(1) is None, "it knows its hosts", job.host(0), job.host(1))
ok(job.setting("gradcomp.log") == "error" and job.setting("no.such") is None, "and its settings")

buf = (ctypes.c_float * 5)(1, 2, 3, 4, 5)
job.world.allreduce(buf)
ok(list(buf) == [1, 2, 3, 4, 5], "an all-reduce of one rank")
job.world.broadcast(buf)
job.world.barrier()
out = (ctypes.c_float * 5)()
job.world.allgather(buf, out, [5])
ok(list(out) == [1, 2, 3, 4, 5], "an all-gather")
job.world.reduce_scatter(buf, out, [5], op="max")
ok(list(out) == [1, 2, 3, 4, 5], "a reduce-scatter")
e = error_of(job.world.allgather, buf, out, [6])
ok(e is not None and e.status == _lib.ERR_INVALID, "counts that do not fit the buffers are refused", e)
e = error_of(job.world.allreduce, b"12345678")
ok(e is not None and e.status == _lib.ERR_INVALID, "a read-only buffer is refused", e)
ok(job.world.split(-1) is None, "colour -1 is in no group")
part = job.world.split(0)
ok((part.rank, part.nranks, part.world_rank(0)) == (0, 1, 0), "a group split off")

heard = []
reducer = gradcomp.Reducer(part, [("w", (2, 2), "float32"), ("b", (1,), "float32")], done=lambda i, e: heard.append((i, e)))
w, b = (ctypes.c_float * 4)(1, 2, 3, 4), (ctypes.c_float * 1)(7)
reducer.ready(1, ctypes.addressof(b))
e = error_of(reducer.wait)
ok(e is not None and e.status == _lib.ERR_STATE and "w" in str(e), "waiting for a tensor never given names it", e)
reducer.ready(0, ctypes.addressof(w))
reducer.wait()
ok(sorted(heard) == [(0, None), (1, None)], "done is called once for every tensor", heard)
ok(list(w) == [1, 2, 3, 4] and b[0] == 7, "the average of one rank is its own gradient", list(w), b[0])
ok(reducer.stats()["steps"] == 1, "counters", reducer.stats())
reducer.load(reducer.save())
e = error_of(reducer.load, b"nonsense")
ok(e is not None and e.status < 0, "a state that is none is refused", e)
e = error_of(gradcomp.Reducer, part, [("n", (3,), "int32")])
ok(e is not None and e.status < 0, "a tensor of integers is refused", e)
for said, given in (("compressor=4: must be a text", {"compressor": 4}), ("collective=['ring']", {"collective": ["ring"]}),
                    ("'topk\\x00x'", {"compressor": "topk\0x"}), ("''", {"compressor": ""}), ("schedule=1", {"schedule": 1}),
                    ("bucket_bytes=2.5: must be a whole number", {"bucket_bytes": 2.5}), ("bucket_bytes=-1: must be 0..", {"bucket_bytes": -1}),
                    ("seed=-1: must be 0..", {"seed": -1}), ("delay='2'", {"delay": "2"}), ("delay=None", {"delay": None})):
    e = error_of(gradcomp.Reducer, part, [("w", (3,), "float32")], **given)
    ok(isinstance(e, (gradcomp.Error, TypeError)) and said in str(e), f"{given}: refused, and named", repr(e))
e = error_of(job.world.allreduce, buf, "avg")
ok(isinstance(e, gradcomp.Error) and "op='avg'" in str(e) and "sum, max, min, bor" in str(e), "an operation that is none is named", repr(e))
e = error_of(gradcomp.Job, settings="gradcomp.log=error")
ok(isinstance(e, TypeError) and "must be a list" in str(e), "a text is no list of settings", repr(e))
e = error_of(gradcomp.Job, settings=[None, "gradcomp.log=nonsense"])
ok(isinstance(e, TypeError) and "without None" in str(e), "nor is None a setting, which would end the list", repr(e))
reducer.free()
part.free()
job.free()
gradcomp.Job(settings=(s for s in ["gradcomp.log=error"])).free()
ok(True, "settings may come from a generator")
done_testing()
