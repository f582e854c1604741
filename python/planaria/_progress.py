"""Progress: a line on a terminal or in a notebook, a function of the caller's, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

Report = Callable[[int, int, str], None]

_BETWEEN = 0.1
"""Seconds between two calls: at most ten a second."""

_WIDTH = 24


class Shown:
    """One operation as it is shown."""

    def __init__(self, report: Report | None, what: str, line: bool) -> None:
        self._report, self._what, self._line = report, what, line
        self._last = 0.0
        self._drawn = False

    @property
    def step(self) -> Callable[[int, int], None] | None:
        """What the native module calls while it works; ``None`` where nobody looks."""
        return self._step if self._report is not None or self._line else None

    def _step(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < _BETWEEN or done >= total:
            return
        self._last = now
        if self._report is not None:
            self._report(done, total, self._what)
        if self._line:
            full = int(_WIDTH * done / max(total, 1))
            bar = "=" * full + " " * (_WIDTH - full)
            print(f"\r{self._what} [{bar}] {done / 1e6:.1f} of {total / 1e6:.1f} MB", end="", file=sys.stderr, flush=True)
            self._drawn = True

    def end(self, total: int) -> None:
        """Everything is done."""
        if self._report is not None:
            self._report(total, total, self._what)
        if self._line:
            print(f"\r{self._what} [{'=' * _WIDTH}] {total / 1e6:.1f} of {total / 1e6:.1f} MB", file=sys.stderr)
            self._drawn = False

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._drawn:
            print(file=sys.stderr)


def _interactive() -> bool:
    # A library may have imported IPython without a notebook that shows anything.
    ask = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    in_notebook = hasattr(ask(), "kernel")
    return in_notebook or bool(getattr(sys.stderr, "isatty", lambda: False)())


def bar(progress: None | bool | Report, what: str) -> Shown:
    """How ``progress`` says that an operation is shown."""
    if callable(progress):
        return Shown(progress, what, False)
    if progress is not None and not isinstance(progress, bool):
        raise TypeError(f"progress is None, True, False or a function, not {type(progress).__name__}")
    return Shown(None, what, progress is True or (progress is None and _interactive()))
