# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a job tell each other how a transition went, over the CPU group that the program has."""
from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import Any, Iterator

from . import arguments
from .errors import InvalidArgument, RankFailed


def _distributed() -> Any:
    """torch.distributed where the program initialised it, else None; imports nothing."""
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None


def _cpu_backend(distributed: Any, group: Any) -> tuple[str, str]:
    """The backend that speaks for CPU tensors ("" for none), and all of them as PyTorch writes them: "cuda:nccl"."""
    told = str(distributed.get_backend_config(group))
    by_device = dict(entry.partition(":")[::2] for entry in told.split(","))
    backend = by_device.get("cpu", "")
    return ("" if backend in ("nccl", "fake", "undefined") else backend), told


def cpu_group(group: Any) -> Any:
    """The group to speak through: the one given, else the program's default one; None for a job of one rank."""
    distributed = _distributed()
    if distributed is None:
        if group is not None:
            raise InvalidArgument("attach: a group was given and torch.distributed is not initialised")
        return None
    chosen = group if group is not None else distributed.group.WORLD
    if not isinstance(chosen, distributed.ProcessGroup):
        raise InvalidArgument(f"attach: group is a process group that this rank ({distributed.get_rank()}) belongs to, "
                              f"not {arguments.told(chosen)}")
    if distributed.get_world_size(chosen) == 1:
        return None
    backend, told = _cpu_backend(distributed, chosen)
    if not backend:
        raise InvalidArgument(f"attach: the group has backend {told!r}, and ranks must be able to speak while the "
                              "device is asleep: initialise with backend='cpu:gloo,cuda:nccl', or pass group= a gloo "
                              "group")
    return chosen


def _is_alive(distributed: Any, group: Any) -> bool:
    """Collectives on a group that is gone return at once, as if everybody had answered."""
    try:
        return distributed.get_rank(group) >= 0
    except ValueError:
        return False


@contextmanager
def together(group: Any, what: str) -> Iterator[None]:
    """Runs the body, then waits until every rank has; a rank's own error leaves it, else `RankFailed` for others'."""
    if group is None:
        yield
        return
    distributed = _distributed()
    if distributed is None or not _is_alive(distributed, group):
        raise InvalidArgument(f"{what}: the process group that the job was attached with is destroyed; attach again")
    failure = None
    try:
        yield
    except BaseException as error:  # told to the others first, then raised: they would wait for this rank
        failure = error
    told: list[Any] = [None] * distributed.get_world_size(group)
    mine = None if failure is None else f"{type(failure).__name__}: {failure}"
    try:
        distributed.all_gather_object(told, (what, mine), group=group)
    except Exception as unheard:
        if failure is not None:
            raise failure
        raise _rank_failed(f"{what} is done on this rank, and another gave no verdict ({unheard}). The same call "
                           "again, once all ranks can speak, does what is missing", ()) from unheard
    if failure is not None:
        raise failure
    elsewhere = {distributed.get_global_rank(group, at): call for at, (call, _) in enumerate(told) if call != what}
    if elsewhere:
        raise _rank_failed(f"{what} is done on this rank, and other ranks made another call meanwhile: " +
                           ", ".join(f"rank {rank} {call}" for rank, call in elsewhere.items()) +
                           ". All ranks of a job make the same calls in the same order", tuple(elsewhere))
    others = {distributed.get_global_rank(group, at): text for at, (_, text) in enumerate(told) if text is not None}
    if others:
        raise _rank_failed(f"{what} failed on {len(others)} of {len(told)} ranks, and is done on this one; the same "
                           f"call again does what is missing. " +
                           "; ".join(f"rank {rank}: {text}" for rank, text in others.items()), tuple(others))


def _rank_failed(text: str, which: tuple[int, ...]) -> RankFailed:
    error = RankFailed(text)
    error.ranks = which
    return error
