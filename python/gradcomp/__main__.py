"""`python -m gradcomp ...` and, in a wheel, the command gradcomp: the one that belongs to this package."""

from __future__ import annotations

import os
import sys


def _command() -> str:
    here = os.path.dirname(os.path.abspath(__file__))
    # In a wheel; below an installed LIBDIR/gradcomp/python; anywhere.
    for path in (os.path.join(here, "bin/gradcomp"), os.path.join(here, "../../../../bin/gradcomp")):
        if os.path.exists(path):
            return os.path.normpath(path)
    return "gradcomp"


def main() -> None:
    """Becomes the command, with this process' arguments."""
    command = _command()
    try:
        os.execvp(command, ["gradcomp", *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"gradcomp: {command}: {e.strerror}")


if __name__ == "__main__":
    main()
