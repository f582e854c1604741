"""For programs of transformers: a callback that saves asynchronously while the trainer goes on.

transformers is imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _planaria
from ._place import Url, address
from ._save import SaveHandle, async_save
from ._state import is_dtensor


class _Saving:
    """The saves of one callback: one at a time, the newest ``keep`` of them stay."""

    def __init__(self, url: Url, keep: int) -> None:
        if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
            raise ValueError(f"keep is {keep!r}; use a number of checkpoints, at least 1")
        self.url, self.keep = address(url).rstrip("/"), keep
        self.handle: SaveHandle | None = None
        self._first = True

    def place(self, step: int) -> str:
        """The folder of a step."""
        return f"{self.url}/step-{step:08d}"

    def begin(self, step: int, state: dict[str, Any], first: bool) -> None:
        """Save, once the save before has ended; the state may change when this returns.

        Ranks that hold pieces save together. Where each has everything, the ``first`` one saves.
        """
        self.end()
        self._first = first
        if not first and not _has_pieces(state):
            return
        self.handle = async_save(state, self.place(step), step=step, overwrite=True)
        self.handle.wait_snapshot()

    def end(self) -> None:
        """Wait for the save under way, and remove what is older than the newest ones."""
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.result()
            if self._first:
                _planaria.prune_steps(self.url, self.keep)


def _has_pieces(node: Any) -> bool:
    """Whether a state has a tensor of which each rank holds a part."""
    children = node.values() if isinstance(node, Mapping) else node if isinstance(node, (list, tuple)) else ()
    return is_dtensor(node) or any(_has_pieces(child) for child in children)


def _callback_class() -> Any:
    from transformers import TrainerCallback

    class CheckpointCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
        """Saves model, optimizer, schedule and step to ``url/step-N`` whenever the trainer saves; training goes on meanwhile.

        ``keep`` of the newest checkpoints stay, in object stores too. Of several processes the first saves; with DTensors in
        the state all of them save together. ``planaria.load(folder, into={"model": model})`` reads one back.

        >>> import planaria, tempfile
        >>> callback = planaria.transformers.CheckpointCallback(tempfile.mkdtemp() + "/run", keep=2)
        >>> # Trainer(model, args, train_dataset=data, callbacks=[callback]).train()
        """

        def __init__(self, url: Url, keep: int = 3) -> None:
            self._saving = _Saving(url, keep)

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Begin a save of now."""
            parts: dict[str, Any] = {"model": kwargs.get("model"), "optim": kwargs.get("optimizer"), "schedule": kwargs.get("lr_scheduler")}
            # Asked on every rank, whoever saves: giving their state may take all of them.
            whole: dict[str, Any] = {n: part.state_dict() for n, part in parts.items() if hasattr(part, "state_dict")}
            whole["step"] = int(state.global_step)
            self._saving.begin(int(state.global_step), whole, bool(state.is_world_process_zero))

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
