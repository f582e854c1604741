"""Letters of ours over torch.distributed: a thread that sends and a thread that receives, on a gloo group of their own."""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Any, cast

from . import _planaria, _save
from ._errors import CommError
from ._planaria import Comm, Depot

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_HEAD, _BODY = 7001, 7002
"""Tags of gloo: what is coming, and its bytes."""

_BYE = -1
"""The tag of a rank's last message."""

_FOREVER = 10**8
"""Seconds that a receive waits; gloo has no way to wait without a limit."""


class _Carrier:
    """Carries the letters of one rank until the program ends."""

    def __init__(self, group: ProcessGroup | None) -> None:
        import datetime

        import torch.distributed as dist

        ranks = None if group is None else dist.get_process_group_ranks(group)
        if ranks is not None and dist.get_rank() not in ranks:
            raise CommError("this process is not one of the group's ranks; call comm() on those only")
        # A group of some ranks is made by them alone.
        made = dist.new_group(
            ranks,
            timeout=datetime.timedelta(seconds=_FOREVER),
            backend="gloo",
            use_local_synchronization=ranks is not None,
        )
        # torch says that it may be a number, for ranks outside the group.
        self.group: Any = cast(Any, made)
        self.ranks: list[int] = dist.get_process_group_ranks(self.group)
        self.size = len(self.ranks)
        self.depot = Depot(self.ranks.index(dist.get_rank()), self.size, 1800.0)
        self._process = os.getpid()
        self.ended = False
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"planaria-{name}", daemon=True)
            for name, work in (("send", self._send), ("receive", self._receive))
        ]
        if self.size > 1:
            for thread in self._threads:
                thread.start()

    def _run(self, work: Any) -> None:
        try:
            work()
        except Exception as error:
            if not self.ended:
                self.depot.fail(f"torch.distributed failed: {error}")

    def _send(self) -> None:
        while not self.depot.closed:
            parcel = self.depot.take()
            if parcel is not None:
                self._post(*parcel)
        for rank in range(self.size):
            if self.ranks[rank] != self._own():
                self._post(rank, _BYE, _planaria.empty([0], "u8"))

    def _own(self) -> int:
        import torch.distributed as dist

        return dist.get_rank()

    def _post(self, to: int, tag: int, body: Any) -> None:
        import torch
        import torch.distributed as dist

        head = torch.tensor([tag, body.size], dtype=torch.int64)
        dist.send(head, self.ranks[to], group=self.group, tag=_HEAD)
        if body.size:
            dist.send(body.torch(), self.ranks[to], group=self.group, tag=_BODY)

    def _receive(self) -> None:
        import torch
        import torch.distributed as dist

        left = self.size - 1
        while left:
            head = torch.empty(2, dtype=torch.int64)
            source = dist.recv(head, None, group=self.group, tag=_HEAD)
            tag, size = head.tolist()
            if tag == _BYE:
                left -= 1
                continue
            body = _planaria.empty([size], "u8")
            if size:
                dist.recv(body.torch(), source, group=self.group, tag=_BODY)
            self.depot.deliver(self.ranks.index(source), tag, body)

    def close(self) -> None:
        """Sends what is left, says goodbye, and gives the others a moment to do the same."""
        # A forked child has none of the threads, and the letters are its parent's.
        if self.ended or self._process != os.getpid():
            return
        self.ended = True
        self.depot.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(5.0)


_kept: list[_Carrier] = []


def connect(group: ProcessGroup | None) -> Comm:
    """A communicator of the ranks of a group. Collective."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise CommError("torch.distributed does not run; call torch.distributed.init_process_group first")
    carrier = _Carrier(group)
    _kept.append(carrier)
    return carrier.depot.comm


def _close() -> None:
    # Saves that are still under way need their letters carried.
    _save._finish_pending()
    while _kept:
        _kept.pop().close()


atexit.register(_close)
