"""logging.getLogger("gradcomp"): what the package says. Without a handler of the program's, here or at the root, it goes to
stderr as `gradcomp: TEXT`, like what the library itself says there."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("gradcomp")


class _ToStderr(logging.Handler):
    """To sys.stderr as it is then, unless the program has a handler for it."""

    def emit(self, record: logging.LogRecord) -> None:
        if self._others():
            return
        try:
            print(f"gradcomp: {record.getMessage()}", file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)

    def _others(self) -> bool:
        at: "logging.Logger | None" = logger
        while at is not None:
            if any(handler is not self for handler in at.handlers):
                return True
            at = at.parent if at.propagate else None
        return False


def tell(text: object) -> None:
    """All is well, and worth knowing."""
    logger.info("%s", text)


def warn(text: object) -> None:
    """Something is not as it was meant, or has failed."""
    logger.warning("%s", text)


if not any(isinstance(handler, _ToStderr) for handler in logger.handlers):
    logger.addHandler(_ToStderr())
if logger.level == logging.NOTSET:
    logger.setLevel(logging.INFO)
