"""Training runs: from a dict, step by step or all at once; whatever is cut short is saved and goes on later."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from . import _planaria
from ._planaria import Array
from ._reports import Report
from ._rewards import judges
from ._state import decoded, encoded


@dataclasses.dataclass(repr=False, frozen=True)
class Step(Report):
    """One step in figures."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens: int
    samples: int
    epoch: float
    seconds: float
    skipped: bool
    tokens_per_second: float


@dataclasses.dataclass(repr=False, frozen=True)
class Outcome(Report):
    """How a run ended: ``stopped`` when it was asked to before its last step; what is done is saved."""

    step: int
    loss: float | None
    losses: list[float]
    stopped: bool
    checkpoint: str | None
    folder: str | None = None


class RunPlan(Report):
    """What a run will need, by name."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return dict(self._values)


LOG = logging.getLogger("planaria")

Config = Mapping[str, Any] | str | os.PathLike[str]


def _source(config: Config) -> tuple[str | None, str | None]:
    if isinstance(config, Mapping):
        return json.dumps(_plain(config)), None
    if isinstance(config, (str, os.PathLike)):
        return None, os.fspath(config)
    raise TypeError(f"a configuration is a dict or the path of a TOML file, not {type(config).__name__}")


def _plain(node: Any, key: str = "") -> Any:
    """The dict as TOML has it: without ``None``, and paths as text."""
    if isinstance(node, Mapping):
        return {str(k): _plain(v, str(k)) for k, v in node.items() if v is not None}
    if isinstance(node, (list, tuple)):
        return [_plain(v) for v in node]
    if isinstance(node, os.PathLike):
        return os.fspath(node)
    if isinstance(node, (bool, int, float, str)):
        return node
    raise TypeError(f"a configuration has no place for the {type(node).__name__} at `{key}`")


def plan_run(config: Config, *, ranks: int | None = None) -> RunPlan:
    """What a run will need: memory of each rank, bytes sent, time lost in the pipeline. Nothing is started.

    >>> import planaria
    >>> model = {"kind": "qwen2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> data = {"sequence": 32, "source": [{"path": "text.txt"}]}
    >>> train = {"steps": 10, "global_batch": 64, "micro_batch": 1}
    >>> plan = planaria.plan_run({"mesh": "tp=2", "model": model, "data": data, "train": train}, ranks=64)
    >>> plan.ranks
    64
    """
    text, path = _source(config)
    return RunPlan(json.loads(_planaria.plan_config(text, path, ranks)))


class _Samples:
    """An iterable of samples as the native module pulls it, one after the other, from one thread at a time."""

    def __init__(self, data: Any) -> None:
        if not isinstance(data, Iterable):
            raise TypeError(f"data is an iterable of {{'input_ids': integers}}, not {type(data).__name__}")
        self._data: Any = data
        self._rows: Iterator[Any] | None = None

    def begin(self) -> None:
        """A new run: the iterable begins anew, unless it is its own iterator."""
        self._rows = None

    def next(self) -> tuple[Array, Array | None] | None:
        """Token ids and labels of the next sample."""
        for again in (False, True):
            if self._rows is None:
                self._rows = iter(self._data)
            try:
                return self._sample(next(self._rows))
            except StopIteration:
                # What is its own iterator has no second round.
                if again or self._rows is self._data:
                    return None
                self._rows = None
        return None

    def _sample(self, row: Any) -> tuple[Array, Array | None]:
        if not isinstance(row, Mapping) or "input_ids" not in row:
            raise TypeError(f"a sample is {{'input_ids': integers}}, not {type(row).__name__} {str(row)[:60]}")
        labels = row.get("labels")
        return self._ids(row["input_ids"]), None if labels is None else self._ids(labels)

    def _ids(self, given: Any) -> Array:
        ids = _planaria.array(given)
        if str(ids.dtype)[0] not in "iu" and ids.size:
            raise TypeError(f"token ids are integers, not {ids.dtype}")
        if ids.ndim != 1:
            raise ValueError(f"the token ids of a sample have one dim, not {ids.ndim}; give samples one by one")
        return ids.astype("i64")

    def _keeper(self) -> Any:
        """Who knows where the data stands: the iterator where it can tell, else what it came from."""
        both = [thing for thing in (self._rows, self._data) if thing is not None]
        return next((thing for thing in both if hasattr(thing, "state_dict")), None)

    def state(self) -> str | None:
        """The state as JSON; ``None`` for data that has none."""
        keeper = self._keeper()
        return None if keeper is None else json.dumps(encoded(keeper.state_dict(), "data"))

    def restore(self, text: str) -> None:
        """Go on where ``state`` was asked."""
        keeper = self._keeper()
        if keeper is None or not hasattr(keeper, "load_state_dict"):
            raise TypeError(f"the checkpoint has a state for data, and {type(self._data).__name__} has no load_state_dict")
        keeper.load_state_dict(decoded(json.loads(text)))
        self._rows = None if keeper is self._data else self._rows


class Trainer:
    """A run of a configuration, which is the TOML as a dict, or the path of a file.

    ``steps()`` goes through it step by step; ``run()`` goes to its end and calls back. Either resumes where the run's
    folder left off. ``stop()`` and ``save()`` may be called from any thread.

    ``data`` takes the place of ``[[data.source]]``: an iterable of ``{"input_ids": integers}``, one sample each, of at most
    ``data.sequence + 1`` tokens; ``"labels"`` of as many integers may say what to learn, -100 for nothing. With
    ``state_dict`` and ``load_state_dict`` it goes on where a run stopped; without, what was read before is skipped. One that
    ends begins again.

    ``rewards`` are functions by name for ``train.objective`` ``"grpo"`` and ``"ppo"``, beside those of ``[[rl.reward]]``. One is called
    with a list of prompts, a list of responses and, by keyword, what it has a parameter for: ``prompt_ids``, ``response_ids``,
    ``finished``, and the fields of the rows, a list each. It gives as many numbers, in the same order, as a list, an array or a
    tensor; ``None`` leaves a response out. One that raises, or gives another count or no finite number, has failed: its responses
    have no reward, their groups count nothing, and the log says so. Each counts 1, or the ``weight`` of the
    ``[[rl.reward]]`` of ``kind = "function"`` and its ``name``. Ranks call it one at a time, from threads of their own.

    >>> import planaria, tempfile
    >>> config = {
    ...     "model": {"kind": "qwen2", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    ...     "data": {"sequence": 8},
    ...     "train": {"steps": 3, "global_batch": 2, "micro_batch": 2},
    ... }
    >>> rows = [{"input_ids": list(range(k, k + 9))} for k in range(20)]
    >>> trainer = planaria.Trainer(config, run=tempfile.mkdtemp() + "/run", data=rows)
    >>> [step.step for step in trainer.steps()]
    [1, 2, 3]

    >>> folder = tempfile.mkdtemp()
    >>> with open(folder + "/sums.jsonl", "w") as file:
    ...     print('{"prompt": "1+1=", "answer": "2"}', file=file)
    >>> def right(prompts, responses, answer):
    ...     return [float(said == value) - len(said) / 100 for said, value in zip(responses, answer)]
    >>> config |= {
    ...     "data": {"sequence": 8, "source": [{"path": folder + "/sums.jsonl"}]},
    ...     "rl": {"samples_per_prompt": 4, "max_new_tokens": 2},
    ...     "train": {"objective": "grpo", "steps": 2, "global_batch": 1, "micro_batch": 1},
    ... }
    >>> planaria.Trainer(config, run=folder + "/run", rewards={"right": right}).run().step
    2
    """

    def __init__(
        self,
        config: Config,
        *,
        run: str | os.PathLike[str] | None = None,
        data: Iterable[Mapping[str, Any]] | None = None,
        rewards: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self._text, self._path = _source(config)
        self._rewards = judges(rewards)
        self._data = None if data is None else _Samples(data)
        self._run = None if run is None else os.fspath(run)
        self._folder = self._run
        self._lock = threading.Lock()
        self._now: _planaria.Run | None = None
        self._outcome: Outcome | None = None
        _planaria.check_config(self._text, self._path, data is not None)

    @property
    def outcome(self) -> Outcome | None:
        """How the last run ended; ``None`` before that."""
        return self._outcome

    def stop(self) -> None:
        """Ask the run to finish its step, save and end; without a run, nothing happens."""
        self._check_process()
        with self._lock:
            if self._now is not None:
                self._now.stop()

    def save(self) -> None:
        """Ask for a checkpoint after this step; without a run, nothing happens."""
        self._check_process()
        with self._lock:
            if self._now is not None:
                self._now.save()

    def steps(self, *, ranks: int | None = None, until: int | None = None) -> Iterator[Step]:
        """The steps, as they are done. Leaving the loop ends the step, saves, and returns."""
        run = self._begin(ranks, until)
        try:
            for kind, about in self._events(run):
                if kind == "step":
                    yield Step(**about)
        finally:
            self._end(run)

    def run(
        self, *, ranks: int | None = None, until: int | None = None, callbacks: Iterable[Any] = ()
    ) -> Outcome:
        """Train to the end, or to step ``until``. Callbacks have any of ``on_start on_step on_eval on_save on_end``,
        ``on_figures`` for what an objective tells of a step by name, and ``on_reward_failed``.

        >>> import planaria, tempfile
        >>> model = {"kind": "qwen2", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> config = {"model": model, "data": {"sequence": 8}, "train": {"steps": 3, "global_batch": 2, "micro_batch": 2}}
        >>> rows = [{"input_ids": list(range(k, k + 9))} for k in range(20)]
        >>> class Count:
        ...     seen = 0
        ...     def on_step(self, step):
        ...         self.seen += 1
        >>> count = Count()
        >>> planaria.Trainer(config, run=tempfile.mkdtemp() + "/run", data=rows).run(callbacks=[count]).step, count.seen
        (3, 3)
        """
        callbacks = list(callbacks)
        run = self._begin(ranks, until)
        try:
            for kind, about in self._events(run):
                said: Any = Step(**about) if kind == "step" else about
                for callback in callbacks:
                    heard = getattr(callback, f"on_{kind}", None)
                    if heard is not None:
                        heard(said)
        finally:
            self._end(run)
        assert self._outcome is not None
        for callback in callbacks:
            heard = getattr(callback, "on_end", None)
            if heard is not None:
                heard(self._outcome)
        return self._outcome

    def _check_process(self) -> None:
        """Threads of a run do not follow a fork; looked at without the lock, which may be held for good in a child."""
        now = self._now
        if now is not None:
            now.check()

    def _begin(self, ranks: int | None, until: int | None) -> _planaria.Run:
        self._check_process()
        with self._lock:
            if self._now is not None:
                raise RuntimeError("the trainer runs already; wait for it, or stop it")
            self._outcome = None
            if self._data is not None:
                self._data.begin()
            self._now = _planaria.start_run(
                self._text, self._path, self._run, ranks, until, (self._data, self._rewards)
            )
            self._folder = self._now.folder
            return self._now

    def _events(self, run: _planaria.Run) -> Iterator[tuple[str, dict[str, Any]]]:
        while self._outcome is None:
            kind, about = run.next()
            _log(kind, about)
            if kind == "outcome":
                self._outcome = Outcome(**about, folder=self._folder)
            else:
                yield kind, about

    def _end(self, run: _planaria.Run) -> None:
        """Whatever ended the loop, the run finishes its step and is saved."""
        try:
            run.check()
        except RuntimeError:
            # A child has no threads of this run, and the lock may be held for good there.
            return
        try:
            if self._outcome is None:
                run.stop()
                for _ in self._events(run):
                    pass
        except _planaria_errors():
            pass
        finally:
            with self._lock:
                self._now = None

    def __repr__(self) -> str:
        state = "running" if self._now is not None else "idle" if self._outcome is None else "ended"
        return f"Trainer {self._run or self._path or 'of a dict'} {state}"

    def __reduce__(self) -> Any:
        raise TypeError("a Trainer cannot be pickled; make one in each process")


def _log(kind: str, about: dict[str, Any]) -> None:
    if kind in ("save_failed", "records_failed"):
        LOG.error("%s: %s", kind.replace("_", " "), about.get("error"))
    elif kind == "reward_failed":
        LOG.warning("%d of %d responses have no reward: %s", about["unscored"], about["responses"], about["error"])
    elif kind == "step":
        LOG.debug("step %d: loss %.4f", about["step"], about["loss"])
    elif kind == "figures":
        LOG.debug("figures %s", about)
    else:
        LOG.info("%s %s", kind, about)


def _planaria_errors() -> type[Exception]:
    from ._errors import Error

    return Error
