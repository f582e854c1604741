"""For programs of transformers: a callback that saves asynchronously while the trainer goes on.

transformers is imported on first use.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from typing import Any

from ._place import Url, address
from ._save import SaveHandle, async_save

LOG = logging.getLogger("planaria")


class _Saving:
    """The saves of one callback: one at a time, the newest ``keep`` of them stay."""

    def __init__(self, url: Url, keep: int) -> None:
        if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
            raise ValueError(f"keep is {keep!r}; use a number of checkpoints, at least 1")
        self.url, self.keep = address(url).rstrip("/"), keep
        self.handle: SaveHandle | None = None

    def place(self, step: int) -> str:
        """The folder of a step."""
        return f"{self.url}/step-{step:08d}"

    def begin(self, step: int, state: dict[str, Any]) -> None:
        """Save, once the save before has ended; the state may change when this returns."""
        self.end()
        self.handle = async_save(state, self.place(step), step=step, overwrite=True)
        self.handle.wait_snapshot()

    def end(self) -> None:
        """Wait for the save under way, and remove what is older than the newest ones."""
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.result()
        if not os.path.isdir(self.url):
            return
        found = sorted(name for name in os.listdir(self.url) if re.fullmatch(r"step-\d{8,}", name))
        for name in found[: -self.keep]:
            shutil.rmtree(f"{self.url}/{name}", ignore_errors=True)


def _callback_class() -> Any:
    from transformers import TrainerCallback

    class CheckpointCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
        """Saves model, optimizer, schedule and step to ``url/step-N`` whenever the trainer saves; training goes on meanwhile.

        ``keep`` of the newest checkpoints stay. ``planaria.load(folder, into={"model": model})`` reads one back.
        """

        def __init__(self, url: Url, keep: int = 3) -> None:
            self._saving = _Saving(url, keep)

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Begin a save of now."""
            parts = {"model": kwargs.get("model"), "optim": kwargs.get("optimizer"), "schedule": kwargs.get("lr_scheduler")}
            whole: dict[str, Any] = {name: part for name, part in parts.items() if hasattr(part, "state_dict")}
            whole["step"] = int(state.global_step)
            self._saving.begin(int(state.global_step), whole)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Wait for the last save."""
            self._saving.end()

    CheckpointCallback.__module__ = "planaria.transformers"
    CheckpointCallback.__qualname__ = "CheckpointCallback"
    return CheckpointCallback


_made: Any = None


def __getattr__(name: str) -> Any:
    # Its base class is transformers', which is imported when it is asked for.
    global _made
    if name == "CheckpointCallback":
        if _made is None:
            _made = _callback_class()
        return _made
    raise AttributeError(f"module 'planaria.transformers' has no attribute '{name}'")


__all__ = ["CheckpointCallback"]
