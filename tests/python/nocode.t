#!/usr/bin/python3
"""Programs that know nothing of gradcomp, with GRADCOMP set and the package in front on PYTHONPATH as
the SPANK plugin puts it: their models are attached, or train as without and one line says why. In the first runs gradcomp is
loaded as PyTorch is imported; the others are forked of a process that has imported it, and do then what the import does."""

import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import BUILD, SOURCE, done_testing, environment, errors, forked_ranks, need_gloo, need_library, ok, ranks  # noqa: E402

need_gloo()
need_library()
import torch  # noqa: E402

PACKAGE = os.path.join(BUILD, "lib/gradcomp/python")
PROGRAM = os.path.join(SOURCE, "tests/python/unmodified.py")
LOADED = f"""
import runpy
from gradcomp.autoload import load
load()
runpy.run_path({PROGRAM!r}, run_name="__main__")
"""
JOB = re.compile(r"gradcomp: \S+ on 2 ranks of 1 node: ")
ATTACHED = "gradcomp: attached DistributedDataParallel(Sequential), 5403 parameters in 4 tensors"


def run(name, *modes, expect=(0, 0), imports=False, **more):
    """What the two ranks printed; [] when they did not end as expected."""
    more = {"PYTHONPATH": PACKAGE, "GRADCOMP_AUTO_ATTACH": None, **more}
    start, argv = (ranks, [PROGRAM]) if imports else (forked_ranks, ["-c", LOADED])
    got = start(2, [*argv, *modes], timeout=120, **more)
    return got if ok(tuple(s for s, _, _ in got) == expect, f"{name}: both ranks end", errors(got)) else []


def lines(got):
    """Of gradcomp's, from all ranks, but that with which a job ends."""
    return [line for _, _, err in got for line in err.splitlines() if line.startswith("gradcomp: ") and not JOB.search(line)]


def jobs(got):
    return sum(len(JOB.findall(err)) for _, _, err in got)


def worst(got):
    return max(float(re.search(r"worst (\S+)", out).group(1)) for _, out, _ in got)


for spec in ("none", "topk:density=0.1"):
    got = run(spec, *(["view"] if spec == "none" else []), imports=spec == "none", GRADCOMP=spec)
    ok(lines(got) == [f"{ATTACHED}: {spec}"], f"{spec}: one line says what is attached", lines(got))
    ok(jobs(got) == 1, f"{spec}: it was a job of gradcomp", errors(got))
    ok(got and (worst(got) < 1e-6) == (spec == "none"), f"{spec}: gradients are what it makes of them")
for name, more in (("off", {"GRADCOMP": "off"}),
                   ("auto-attach=no", {"GRADCOMP": "none", "GRADCOMP_AUTO_ATTACH": "no"})):
    got = run(name, imports=True, **more)
    ok(lines(got) == [] and jobs(got) == 0 and worst(got) == 0, f"{name}: as if gradcomp were not there", errors(got))
    ok(all("ours False" in out for _, out, _ in got) or hasattr(torch, "_import_device_backends"),
       f"{name}: nothing of it is imported, where it is not PyTorch that does", got)
with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
    conf.write("[gradcomp]\nauto_attach = no\n")
    conf.flush()
    got = run("auto_attach = no in gradcomp.conf", imports=True, GRADCOMP="none", GRADCOMP_CONF=conf.name)
    ok(lines(got) == [] and jobs(got) == 0, "and the site has its way", errors(got))

got = run("a hook of the program's", "hook", GRADCOMP="none")
ok(len(lines(got)) == 1 and "communication hook of its own (fp16_compress_hook)" in lines(got)[0] and jobs(got) == 0,
   "it stays", lines(got))
got = run("attach() by the program", "attach", GRADCOMP="topk:density=0.1")
ok(lines(got) == [] and jobs(got) == 1 and worst(got) < 1e-6, "it counts, as if there were no other", errors(got))
got = run("attach() after the first passes", "late", GRADCOMP="topk:density=0.1")
ok(len(lines(got)) == 2 and "takes over after 2 steps" in lines(got)[1], "it takes over and says what is lost", lines(got))
ok(all("steps 2" in out for _, out, _ in got), "and reduces from then on", got)

got = run("a library that is none", GRADCOMP="none", GRADCOMP_LIBRARY="/dev/null")
ok(len(lines(got)) == 1 and "trains as without gradcomp: rank " in lines(got)[0] and "/dev/null" in lines(got)[0] and
   worst(got) == 0, "one line, and the model trains", errors(got))
got = run("a compressor that is none", GRADCOMP="topq")
ok(len(lines(got)) == 1 and "compressor 'topq' is not installed" in lines(got)[0] and worst(got) == 0, "one line, and the model trains",
   errors(got))
got = run("a setting that is none", GRADCOMP="none", GRADCOMP_AUTO_ATTACH="maybe")
ok(len(lines(got)) == 1 and "GRADCOMP_AUTO_ATTACH: gradcomp.auto_attach: 'maybe'" in lines(got)[0],
   "auto-attach=maybe is refused by name", errors(got))


def python(code, *options, path="", **more):
    """stdout and stderr of a Python with the package in front on its path."""
    env = environment(GRADCOMP="none", GRADCOMP_AUTO_ATTACH=None, **more)
    env["PYTHONPATH"] = PACKAGE + (":" + path if path else "")
    got = subprocess.run([sys.executable, *options, "-c", code], env=env, capture_output=True, text=True, timeout=60,
                         check=False)
    return got.stdout + got.stderr


SITE = "import sys; m = sys.modules.get('sitecustomize'); print(getattr(m, 'WHO', None), getattr(m, '__file__', None))"
with tempfile.TemporaryDirectory() as own:
    with open(os.path.join(own, "sitecustomize.py"), "w", encoding="ascii") as f:
        f.write("WHO = 'the site'\n")
    said = python(SITE, path=own)
    ok(said == f"the site {own}/sitecustomize.py\n", "the site's own sitecustomize has run, in its place", said)
    said = python(SITE, path=f"{PACKAGE}/.:{PACKAGE}:{own}")
    ok(said.startswith("the site "), "also with the package on the path twice", said)
    for option in ("-S", "-I"):
        said = python(SITE, option, path=own)
        ok(f"{own}/" not in said and "Error" not in said, f"python {option} is as ever", said)
    with open(os.path.join(own, "sitecustomize.py"), "w", encoding="ascii") as f:
        f.write("import no_such_module\n")
    said = python("print('runs')", path=own)
    ok("no_such_module" in said and said.count("runs") == 1, "one of the site's that fails says so, as without", said)
usual = python(SITE)
plain = subprocess.run([sys.executable, "-c", SITE], env=environment(PYTHONPATH=""), capture_output=True, text=True, check=False)
ok("Error" not in usual and (usual == plain.stdout or plain.stdout == "None None\n"), "what the system has of its own is loaded",
   usual, plain.stdout)
said = python("import torch, sys; print(sys.meta_path[0].__class__.__name__, torch.__name__)")
ok("WhenTorchComes" not in said and said.endswith("torch\n"), "nothing stays in the way of imports", said)
done_testing()
