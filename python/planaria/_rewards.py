"""Reward functions: what a program thinks of the responses that a run makes."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

LOG = logging.getLogger("planaria")

#: What every function may ask for beside prompts and responses; fields of the rows do not hide these.
OWN = ("prompts", "responses", "prompt_ids", "response_ids", "finished")


class Judge:
    """A reward function as the native module asks it: from the thread of a rank, for the responses of a micro-batch."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"the reward {name!r} is a function of prompts and responses, not {type(function).__name__}")
        self._name = name
        self._function = function
        self._takes = _keywords(function)

    def score(
        self,
        prompts: list[str],
        responses: list[str],
        prompt_ids: list[list[int]],
        response_ids: list[list[int]],
        finished: list[bool],
        rows: str,
    ) -> list[float | None]:
        """The score of each response; ``rows`` is the JSON of their rows."""
        given: dict[str, Any] = {"prompt_ids": prompt_ids, "response_ids": response_ids, "finished": finished}
        fields = json.loads(rows)
        for name in dict.fromkeys(name for row in fields for name in row):
            if name not in OWN and name != "prompt":
                given[name] = [row.get(name) for row in fields]
        if self._takes is not None:
            given = {name: value for name, value in given.items() if name in self._takes}
        try:
            scores = self._function(prompts, responses, **given)
            scores = scores.tolist() if hasattr(scores, "tolist") else list(scores)
            return [None if score is None else float(score) for score in scores]
        except Exception:
            # The run goes on without these responses and tells so in one line; where it went wrong stands here.
            LOG.debug("the reward function %r raised", self._name, exc_info=True)
            raise


def judges(rewards: Mapping[str, Callable[..., Any]] | None) -> list[tuple[str, Judge]]:
    """The functions by name, ready to be asked."""
    if rewards is None:
        return []
    if not isinstance(rewards, Mapping):
        raise TypeError(f"rewards are functions by name, as in {{'right': right}}, not {type(rewards).__name__}")
    return [(str(name), Judge(str(name), function)) for name, function in rewards.items()]


def _keywords(function: Callable[..., Any]) -> frozenset[str] | None:
    """Names that a function takes beside its first two arguments; ``None`` for one that takes any."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return frozenset()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    by_name = (one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))
    return frozenset(one.name for one in by_name if one not in positional[:2])
