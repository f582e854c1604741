"""Saving: a state as one folder that counts only once it is whole, now or in the background."""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import warnings
from collections.abc import Callable, Generator, Iterable
from typing import Any

from . import _planaria, _progress
from ._place import Format, Progress, Url, address, statements, whole
from ._planaria import Comm
from ._reports import SaveReport
from ._state import Flat, few, group_of, named, rooms

LOG = logging.getLogger("planaria")


def _given(
    flat: Flat,
    url: Url,
    comm: Comm | None,
    format: str,
    step: int | None,
    mapping: str | Iterable[str] | None,
    max_file_size: str | int,
    overwrite: bool,
) -> dict[str, Any]:
    if step is None:
        found = flat.values.get("step")
        step = found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**64 else None
    else:
        step = whole(step, "step")
    if not flat.tensors and format != "planaria":
        raise ValueError(f"the state has no tensors, and the format {format!r} has place for nothing else; use 'planaria'")
    lost = sorted(flat.values)
    if lost and format != "planaria":
        warnings.warn(f"the format {format!r} has no place for {few(lost)}; use 'planaria' to keep them", stacklevel=3)
    about: dict[str, Any] = {"python": flat.tree}
    if flat.kinds:
        about["kinds"] = flat.kinds
    if step is None:
        # Folders have a number there whatever is said; this is that there is none.
        about["step"] = None
    return {
        "tied": flat.tied,
        "about": json.dumps(about),
        "step": step or 0,
        "url": address(url),
        "comm": group_of(flat.tensors) if comm is None else comm,
        "format": format,
        "overwrite": overwrite,
        "mapping": statements(mapping),
        "max_file_size": max_file_size,
    }


def save(
    state: Any,
    url: Url,
    *,
    comm: Comm | None = None,
    format: Format = "planaria",
    step: int | None = None,
    mapping: str | Iterable[str] | None = None,
    max_file_size: str | int = "5GB",
    overwrite: bool = False,
    progress: Progress = None,
) -> SaveReport:
    """Save a state as one checkpoint that counts only once it is whole.

    The state is nested dicts, lists and tuples; its leaves are arrays of ours, NumPy or torch, plain values, and objects
    with ``state_dict`` and ``load_state_dict``. Names join with ``.``.

    >>> import planaria, tempfile
    >>> place = tempfile.mkdtemp() + "/step-7"
    >>> planaria.save({"weight": planaria.array([1.0, 2.0]), "step": 7}, place).tensors
    1
    >>> planaria.load(place)["weight"].tolist()
    [1.0, 2.0]
    """
    flat = Flat(state)
    given = _given(flat, url, comm, format, step, mapping, max_file_size, overwrite)
    with _progress.bar(progress, "save") as shown:
        wrote, tensors, seconds = _planaria.save_state(named(rooms(flat.tensors)), given, shown.step)
        shown.end(wrote)
    LOG.info("saved %d tensors, %d bytes in %.3f s to %s", tensors, wrote, seconds, address(url))
    return SaveReport(address(url), wrote, tensors, seconds)


class SaveHandle:
    """A save in the background. It can be waited for, awaited, or asked to stop.

    >>> import asyncio, planaria, tempfile
    >>> async def work():
    ...     return await planaria.async_save({"w": planaria.array([1.0])}, tempfile.mkdtemp() + "/c")
    >>> asyncio.run(work()).tensors
    1
    """

    def __init__(self, job: _planaria.SaveJob, url: str) -> None:
        self._job = job
        self._url = url
        self._callbacks: list[Callable[[SaveHandle], object]] | None = []
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._process = os.getpid()

    def _check_process(self) -> None:
        """Threads do not follow a fork."""
        if self._process != os.getpid():
            what = f"this SaveHandle belongs to process {self._process}, which forked this one; make another here"
            raise RuntimeError(what)

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._job.done()

    def wait_snapshot(self, timeout: float | None = None) -> None:
        """Wait until the state may change; raises ``TimeoutError`` when that takes longer."""
        if not self._job.wait_snapshot(timeout):
            raise TimeoutError(f"the snapshot took longer than {timeout} s")

    def result(self, timeout: float | None = None) -> SaveReport:
        """Wait for the end; raises what went wrong."""
        if not self._job.wait_end(timeout):
            raise TimeoutError(f"the save took longer than {timeout} s")
        answer = self._job.answer()
        assert answer is not None
        return SaveReport(self._url, *answer)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end; what went wrong, or ``None``."""
        self._check_process()
        try:
            self.result(timeout)
        except TimeoutError:
            raise
        except Exception as error:
            return error
        return None

    def cancel(self) -> bool:
        """Ask the save to stop and remove what it left; false when it has already ended."""
        return self._job.cancel()

    def add_done_callback(self, f: Callable[[SaveHandle], object]) -> None:
        """Call ``f(handle)`` when the save has ended; at once when it has."""
        self._check_process()
        if not callable(f):
            raise TypeError(f"a callback is a function of the handle, not {type(f).__name__}")
        with self._lock:
            if self._callbacks is not None:
                self._callbacks.append(f)
                if self._watcher is None:
                    self._watcher = threading.Thread(target=self._watch, name="planaria-callbacks", daemon=True)
                    self._watcher.start()
                return
        f(self)

    def _watch(self) -> None:
        self._job.wait_end(None)
        with self._lock:
            waiting, self._callbacks = self._callbacks or [], None
        for f in waiting:
            try:
                f(self)
            except Exception:
                LOG.exception("a callback of the save to %s failed", self._url)

    def __await__(self) -> Generator[Any, None, SaveReport]:
        import asyncio

        self._check_process()
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(None, self.result).__await__()

    def __repr__(self) -> str:
        if self._process != os.getpid():
            return f"SaveHandle '{self._url}' of process {self._process}"
        return f"SaveHandle '{self._url}' {'ended' if self.done() else 'running'}"

    def __reduce__(self) -> Any:
        raise TypeError("a SaveHandle cannot be pickled; wait for its result")


_ALIVE: set[_planaria.SaveJob] = set()
"""Saves that may still run. Threads do not follow a fork."""


def _finish_pending() -> None:
    for job in list(_ALIVE):
        job.wait_end(None)


atexit.register(_finish_pending)
os.register_at_fork(after_in_child=_ALIVE.clear)


def async_save(
    state: Any,
    url: Url,
    *,
    comm: Comm | None = None,
    format: Format = "planaria",
    step: int | None = None,
    mapping: str | Iterable[str] | None = None,
    max_file_size: str | int = "5GB",
    overwrite: bool = False,
    progress: Progress = None,
) -> SaveHandle:
    """Begin a save and return at once; native threads do the rest.

    The state may change as soon as ``handle.wait_snapshot()`` has returned. Takes what ``save`` takes, and refuses what
    it refuses, at the call.

    >>> import planaria, tempfile
    >>> place, weight = tempfile.mkdtemp() + "/c", planaria.array([1.0])
    >>> handle = planaria.async_save({"w": weight}, place)
    >>> handle.wait_snapshot()
    >>> weight[0] = 5
    >>> handle.result().tensors, planaria.load(place)["w"].tolist()
    (1, [1.0])
    """
    flat = Flat(state)
    given = _given(flat, url, comm, format, step, mapping, max_file_size, overwrite)
    shown = _progress.bar(progress, "save")
    # A list first: other threads begin saves too.
    for ended in [other for other in list(_ALIVE) if other.done()]:
        _ALIVE.discard(ended)
    handle = SaveHandle(_planaria.start_save(named(rooms(flat.tensors)), given, _ALIVE), address(url))
    handle.add_done_callback(_log)
    if shown.step is not None:
        threading.Thread(target=_follow, args=(handle, shown), name="planaria-progress", daemon=True).start()
    return handle


def _follow(handle: SaveHandle, shown: _progress.Shown) -> None:
    """Shows how far a save in the background has come, until it ends."""
    with shown:
        while not handle._job.wait_end(0.1):
            moved = handle._job.moved()
            if moved is not None and shown.step is not None:
                shown.step(*moved)
        if handle.exception() is None:
            shown.end(handle.result().bytes)


def _log(handle: SaveHandle) -> None:
    error = handle.exception()
    if error is None:
        done = handle.result()
        LOG.info("saved %d tensors, %d bytes in %.3f s to %s", done.tensors, done.bytes, done.seconds, done.url)
    else:
        LOG.error("a save to %s failed: %s", handle._url, error)


__all__ = ["SaveHandle", "async_save", "save"]
