# SPDX-License-Identifier: Apache-2.0
"""sleep, wake and swap: all shards of a set, or none."""
from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Iterator, Optional, Union

import torch

from . import _cpu, adopting, arguments, fsdp, walk
from .errors import InvalidArgument, Stray, TimedOut
from .shards import Shard, all_shards

_log = logging.getLogger("stillwake")
_SLICE = 0.2  #: seconds


def _checked(shards: Iterable[Any]) -> list[Shard]:
    chosen = list(shards)
    for each in chosen:
        if not isinstance(each, Shard):
            inside = "; pass its shards one by one: f(*shards)" if isinstance(each, (list, tuple, set)) else ""
            raise InvalidArgument(f"{arguments.told(each)} is no shard; a set is made of what stillwake.shard() "
                                  f"returns{inside}")
    return chosen


def _set(shards: tuple[Shard, ...]) -> list[Shard]:
    """What the caller named; every shard when he named none."""
    return _checked(shards or all_shards())


def _side(given: Union[Shard, Iterable[Shard]]) -> list[Shard]:
    """One side of a swap. An empty one stays empty: it never means every shard."""
    return _checked(given if isinstance(given, (list, tuple, set, frozenset)) else (given,))


def _raw(shards: Iterable[Shard]) -> list:
    return [each._raw for each in shards]


def check_strays(strays: str) -> None:
    if not isinstance(strays, str) or strays not in ("error", "adopt", "report"):
        raise InvalidArgument(f"strays={arguments.told(strays)}: there are 'error', 'adopt' and 'report'")


def _look_for_strays(shards: list[Shard], strays: str, also: Iterable[tuple[Any, Shard]]) -> None:
    check_strays(strays)
    awake = {each for each in shards if each.is_awake}
    trees = adopting.followed.of(awake) + [(tree, into) for tree, into in also if into in awake]
    for tree, _ in trees:
        if isinstance(tree, torch.nn.Module):
            fsdp.reshard(tree)  # what it gathered is no stray: it comes and goes with every step
    found = adopting.strays_of(trees)
    if not found:
        return
    text = ", ".join(str(stray) for stray, _, _ in found[:5])
    text += f" and {len(found) - 5} more" if len(found) > 5 else ""
    if strays == "error":
        error = Stray(f"sleep: {len(found)} tensors of what was adopted live in no shard and would stay on the device: "
                      f"{text}. Adopt them, or pass strays='adopt' (what cannot sleep then stays, with a warning) or "
                      "strays='report'")
        error.strays = tuple((stray.name, stray.bytes) for stray, _, _ in found)
        raise error
    if strays == "report":
        _log.warning("sleep leaves %d tensors on the device: %s", len(found), text)
        return
    for shard in awake:
        mine = [(stray.name, storage) for stray, storage, home in found if home is shard]
        if mine:
            adopting.take_in_strays(shard, mine)


def sleep(*shards: Shard, timeout: Optional[float] = None, checked: bool = False,
          strays: str = "error") -> "_cpu.Report":
    """Gives the device memory of the shards back; without arguments, of every shard. Returns when it is free.

    timeout: seconds to wait for work in flight; None waits for ever.
    checked: look twice that nothing was written meanwhile; a difference raises `Busy`.
    strays: what happens when a module or optimizer that was adopted has tensors in no shard. "error": `Stray`, naming
        them; "adopt": they go to the shard that their owner was adopted into, or stay, with a warning: where another
        thread's transition keeps it, the device has no room to move them, or their memory cannot sleep (sparse
        tensors, numpy's memory); "report": they stay, with a log line.

    From the call until it returns use nothing of the set; work queued on the device is waited for. Tensors that were
    adopted raise on access until the wake. Shards that sleep already are left alone. Raises `Busy`, `TimedOut`,
    `OverBudget`, `OutOfHostMemory`, `Corrupted`, `Lost`, `DriverCallFailed`: then everything is awake and unharmed.
    """
    return sleep_with(shards, (), timeout, checked, strays)


def sleep_with(shards: tuple[Shard, ...], also: Iterable[tuple[Any, Shard]], timeout: Optional[float], checked: bool,
               strays: str) -> "_cpu.Report":
    """As `sleep`; strays are looked for in these trees (mappings and lists cannot be followed weakly), too."""
    chosen = _set(shards)
    limit, twice = arguments.seconds(timeout), arguments.flag(checked, "checked")
    _look_for_strays(chosen, strays, also)
    return _cpu.sleep(_raw(chosen), limit, twice)


def _ranges(first: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    if isinstance(first, torch.Tensor) or not isinstance(first, Iterable):
        raise InvalidArgument(f"first={type(first).__name__}: a list of tensors is needed")
    ranges = []
    wanted = [arguments.tensor(each, f"first[{number}]") for number, each in enumerate(first)]
    for name, _, storage, _ in walk.named_storages(wanted):
        if storage.nbytes() > 0:
            if _cpu.shard_of(storage._cdata) is None:
                raise InvalidArgument(f"first{name}: this tensor lives in no shard, so no wake brings it")
            ranges.append((_cpu.address(storage._cdata), storage.nbytes()))
    return ranges


def _in_slices(attempt: Callable[[Optional[float]], Any], limit: Optional[float]) -> Any:
    """Waits for device memory in short slices, which hold nothing when they end: between them Python looks at signals,
    so that Ctrl-C is not late by the whole limit."""
    if limit is None:
        return attempt(None)
    until = time.monotonic() + limit
    while True:
        left = until - time.monotonic()
        try:
            return attempt(max(0.0, min(left, _SLICE)))
        except TimedOut as error:
            if left <= _SLICE:
                raise TimedOut(f"{error} (the last try of {limit:g} s in all)") from None


def wake(*shards: Shard, timeout: Optional[float] = None, streams: Optional[Sequence[Any]] = None,
         first: Iterable[torch.Tensor] = ()) -> Union["_cpu.Report", "_cpu.Ticket"]:
    """Puts memory behind the addresses of the shards and their content into it; without arguments, of every shard.

    timeout: seconds to wait for device memory to come free; None does not wait.
    streams: None returns when everything is restored and verified, and answers a report. A list of CUDA streams returns
        at once, and answers a ticket: those streams wait by themselves, others through `ticket.wait(stream)`;
        `ticket.result()` is the report.
    first: tensors that are wanted early, in this order.

    Host views raise from the call on. Shards that are awake are left alone. Raises `OutOfMemory` (needed, free and
    largest possible bytes), `TimedOut`, `Busy`, `Lost`, `DriverCallFailed`: then everything still sleeps and nothing is
    lost; where the call that failed only asked how the copies went, the shards are on their way or awake, and the same
    call again tells the verdict: until then what is still arriving raises. `Corrupted`: what was restored is not what
    was saved; the shard keeps its backing and refuses to sleep.
    """
    chosen, limit, ranges = _raw(_set(shards)), arguments.seconds(timeout), _ranges(first)
    if streams is None:
        return _in_slices(lambda slice_: _cpu.wake(chosen, slice_, ranges), limit)
    if isinstance(streams, (str, bytes, torch.Tensor)) or not isinstance(streams, Iterable):
        raise InvalidArgument(f"streams={arguments.told(streams)}: a list of CUDA streams is needed, or None")
    handles = [arguments.stream(each, f"streams[{number}]") for number, each in enumerate(streams)]
    return _in_slices(lambda slice_: _cpu.wake_for_streams(chosen, handles, slice_, ranges), limit)


def swap(outgoing: Union[Shard, Sequence[Shard]], incoming: Union[Shard, Sequence[Shard]], *,
         timeout: Optional[float] = None, checked: bool = False, wake_timeout: Optional[float] = None,
         strays: str = "error") -> "_cpu.Report":
    """Puts `outgoing` to sleep while waking `incoming`, both directions of the bus at once, within the memory of the
    larger plus 512 MiB. Returns when all is verified. timeout, checked, strays: of the sleep; wake_timeout: of the
    wake.

    On an error `outgoing` is awake with its content and `incoming` asleep with its host copy.
    """
    leaving, coming = _side(outgoing), _side(incoming)
    limit, twice = arguments.seconds(timeout), arguments.flag(checked, "checked")
    wait = arguments.seconds(wake_timeout, "wake_timeout")
    _look_for_strays(leaving, strays, ())
    return _cpu.swap(_raw(leaving), _raw(coming), limit, twice, wait)


class _Scopes:
    """How many `awake` scopes each shard is in, and which shards one of them woke."""

    def __init__(self) -> None:
        self.renew_lock()
        self._inside: dict[Shard, int] = {}
        self._woken: set[Shard] = set()

    def renew_lock(self) -> None:
        # Held through the transition: nobody enters between the decision to sleep and the sleep. A finalizer of the
        # same thread may. Who waits for device memory lets it go: another scope's end may be what gives the memory.
        self._changed = threading.Condition(threading.RLock())

    def enter(self, shards: list[Shard], timeout: Optional[float]) -> None:
        _in_slices(lambda slice_: self._enter(shards, slice_), arguments.seconds(timeout))

    def _enter(self, shards: list[Shard], wait: Optional[float]) -> None:
        with self._changed:
            try:
                self._wake(shards, None if wait is None else 0.0)
            except TimedOut:
                self._changed.wait(wait)
                self._wake(shards, 0.0)
            for each in shards:
                self._inside[each] = self._inside.get(each, 0) + 1

    def _wake(self, shards: list[Shard], timeout: Optional[float]) -> None:
        sleeping = [each for each in shards if not each.is_awake]
        if sleeping:
            wake(*sleeping, timeout=timeout)
            self._woken.update(sleeping)

    def leave(self, shards: list[Shard]) -> None:
        with self._changed:
            for each in shards:
                self._inside[each] -= 1
            over = {each for each in shards if self._inside[each] == 0}
            for each in over:
                del self._inside[each]
            to_sleep = [each for each in dict.fromkeys(shards) if each in over & self._woken]
            self._woken -= over
            if to_sleep:
                sleep(*to_sleep)
                self._changed.notify_all()


_scopes = _Scopes()
os.register_at_fork(after_in_child=_scopes.renew_lock)  # who held it does not live in the child


@contextmanager
def awake(*shards: Shard, timeout: Optional[float] = None) -> Iterator[tuple[Shard, ...]]:
    """The shards are awake inside. Those that it had to wake sleep again afterwards: where several threads are inside,
    when the last one leaves. Entering and leaving wait for one another; who waits for device memory lets others in and
    out. timeout: as of `wake`."""
    chosen = _set(shards)
    _scopes.enter(chosen, timeout)
    try:
        yield tuple(chosen)
    finally:
        _scopes.leave(chosen)


def is_awake(what: Union[Shard, torch.Tensor]) -> bool:
    """Whether a shard, or a tensor's memory, all of it, may be used. True for a tensor that lives in no shard."""
    owners = [what] if isinstance(what, Shard) else adopting.shards_of(what, "is_awake")
    return all(owner is None or owner.is_awake for owner in owners)


def prepare(*shards: Shard, background: bool = False) -> None:
    """Pins host memory for what is live now, so that the next sleep only copies; without arguments, for every shard.

    background: return at once; the next transition waits for it, and its errors come from there.
    Raises `Asleep`, `Busy`, `OverBudget`, `OutOfHostMemory`.
    """
    for each in _set(shards):
        each.prepare(background)


def trim(*shards: Shard) -> int:
    """Gives pinned host memory that no sleeping page needs back to the system; answers the bytes."""
    return sum(each.trim() for each in _set(shards))


def stats(*shards: Shard) -> dict[str, "_cpu.ShardStats"]:
    """Figures of each shard by name (and device, where a name is used on several): our own accounting, which neighbours
    do not change. `torch.cuda.memory_allocated` goes on counting sleeping memory."""
    chosen = _set(shards)
    names = [each.name for each in chosen]
    return {each.name if names.count(each.name) == 1 else f"{each.name}@{each.device}": each.stats() for each in chosen}
