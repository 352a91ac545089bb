# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a job tell each other how a transition went, over the CPU group that the program has."""
from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import Any, Iterator

from .errors import InvalidArgument, RankFailed


def _distributed() -> Any:
    """torch.distributed where the program initialised it, else None; imports nothing."""
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None


def cpu_group(group: Any) -> Any:
    """The group to speak through: the one given, else the program's default one; None for a job of one rank."""
    distributed = _distributed()
    if distributed is None:
        if group is not None:
            raise InvalidArgument("attach: a group was given and torch.distributed is not initialised")
        return None
    chosen = group if group is not None else distributed.group.WORLD
    if distributed.get_world_size(chosen) == 1:
        return None
    backends = distributed.get_backend_config(chosen) if hasattr(distributed, "get_backend_config") else ""
    told = str(backends or distributed.get_backend(chosen))
    if "gloo" not in told and "mpi" not in told:
        raise InvalidArgument(f"attach: the group has backend {told!r}, and ranks must be able to speak while the device "
                              "is asleep: initialise with backend='cpu:gloo,cuda:nccl', or pass group= a gloo group")
    return chosen


@contextmanager
def together(group: Any, what: str) -> Iterator[None]:
    """Runs the body, then waits until every rank has; a rank's own error leaves it, else `RankFailed` for others'."""
    if group is None:
        yield
        return
    distributed = _distributed()
    failure = None
    try:
        yield
    except Exception as error:  # told to the others first, then raised
        failure = error
    told = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(told, None if failure is None else f"{type(failure).__name__}: {failure}", group=group)
    if failure is not None:
        raise failure
    others = [f"rank {rank}: {text}" for rank, text in enumerate(told) if text is not None]
    if others:
        raise RankFailed(f"{what} failed on {len(others)} of {len(told)} ranks, and is done on this one; the same call "
                         f"again does what is missing. {'; '.join(others)}")
