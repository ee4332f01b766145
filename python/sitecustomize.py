"""Calls gradcomp.autoload.load() once torch has been imported, for a PyTorch that does not do so itself
(before 2.5); then runs the sitecustomize that Python would have run without this one."""
import os
import sys


def _site_own():
    """What comes behind this one on the path takes its place."""
    # What importlib.machinery and importlib.util have, which would take longer than all the rest of it.
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    path = [os.path.abspath(p) for p in sys.path]
    spec = PathFinder.find_spec("sitecustomize", sys.path[path.index(here) + 1:]) if here in path else None
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


class _WhenTorchComes:
    """On sys.meta_path until torch is imported: load() runs behind that."""

    def find_spec(self, name, path=None, target=None):
        del path, target
        if name != "torch":
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec("torch")
        if spec is None:
            sys.meta_path.insert(0, self)  # until there is one
            return None
        run = getattr(spec.loader, "exec_module", None)

        def exec_module(module):
            run(module)
            try:
                from gradcomp.autoload import load

                load()
            except Exception as e:  # the program runs as without gradcomp
                sys.stderr.write("gradcomp: cannot attach models by itself: %s\n" % e)

        try:
            spec.loader.exec_module = exec_module
        except AttributeError:
            sys.stderr.write("gradcomp: cannot attach models by itself: torch has a %s\n" % type(spec.loader).__name__)
        return spec


def _wanted():
    return (os.environ.get("GRADCOMP", "off") not in ("", "off")
            and os.environ.get("GRADCOMP_AUTO_ATTACH", "yes").lower() not in ("no", "false", "off", "0")
            and os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1")


if _wanted():
    sys.meta_path.insert(0, _WhenTorchComes())
_site_own()
