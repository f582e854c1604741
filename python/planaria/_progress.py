"""Progress: a line on a terminal or in a notebook, a function of the caller's, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType


class Shown:
    """One operation as it is shown."""

    def __init__(self, report: Callable[[int, int, str], None] | None, what: str, line: bool) -> None:
        self._report, self._what, self._line = report, what, line

    def end(self, total: int) -> None:
        """Everything is done."""
        if self._report is not None:
            self._report(total, total, self._what)
        if self._line:
            print(f"{self._what}: {total / 1e6:.1f} MB", file=sys.stderr)

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None


def _interactive() -> bool:
    return "ipykernel" in sys.modules or bool(getattr(sys.stderr, "isatty", lambda: False)())


def bar(progress: None | bool | Callable[[int, int, str], None], what: str) -> Shown:
    """How ``progress`` says that an operation is shown."""
    if callable(progress):
        return Shown(progress, what, False)
    if progress is not None and not isinstance(progress, bool):
        raise TypeError(f"progress is None, True, False or a function, not {type(progress).__name__}")
    return Shown(None, what, progress is True or (progress is None and _interactive()))
