# SPDX-License-Identifier: Apache-2.0
"""Shards: named sets of tensors on one device that sleep and wake as one."""
from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, ContextDecorator
from typing import Any, NoReturn, Optional, Union

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from . import _cpu, arguments
from .driver import driver
from .errors import Error, InvalidArgument

_made: dict[tuple[str, str], "Shard"] = {}
_making = threading.RLock()  # the collector may run a finalizer while it is held, which may ask for a shard


def _renew_lock() -> None:
    global _making
    _making = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # who held it does not live in the child


class _Pool(ContextDecorator):
    """The scope of `Shard.pool`, of one thread, which alone may leave it. An exit that is refused changes nothing.

    A signal's handler may raise between any two of these lines (Ctrl-C). An entry that is cut short is taken back, and
    where an exit is, the native scope ends with this object."""

    def __init__(self, shard: "Shard"):
        self._shard = shard
        self._scope: Optional["_cpu.Pool"] = None
        self._entered: Optional[tuple[int, str]] = None  # by which thread: its number, and how messages name it

    def _recreate_cm(self) -> "_Pool":
        return _Pool(self._shard)  # as contextlib asks a decorator: each call has a scope of its own

    def __enter__(self) -> "Shard":
        if self._entered is not None:
            raise InvalidArgument(f"this pool() of shard '{self._shard.name}' was entered by {self._entered[1]} "
                                  "already; each `with` takes a pool() of its own")
        _cpu.take_failure()
        try:
            self._scope = self._shard._raw.enter()
            if self._shard.device.type == "cuda":
                _MakesRoom.begin()
            self._entered = _this_thread()
        except BaseException:
            self._leave()
            raise
        return self._shard

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        here = _this_thread()
        if self._entered is None or self._entered[0] != here[0]:
            told = f"{self._entered[1]} entered it, and has to leave it" if self._entered else "nobody entered it"
            raise InvalidArgument(f"leaving the pool of shard '{self._shard.name}' in {here[1]}: {told}")
        self._leave()
        if isinstance(error, RuntimeError) and not isinstance(error, Error):
            # PyTorch makes errors of its own of what an allocator throws: tell what it was. The last failure of the
            # thread may also be one that the block has caught already, and this error the program's own.
            failure = _cpu.take_failure()
            if failure is not None and self._is_told_by(error, failure):
                raise failure from error

    def _leave(self) -> None:
        """Ends what of the scope there is, in the thread that entered it."""
        self._entered = None
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.leave()
        if self._shard.device.type == "cuda":
            _MakesRoom.end()

    def _is_told_by(self, error: RuntimeError, failure: Error) -> bool:
        """Whether PyTorch's error is about this failure: it quotes it, or its CUDA allocator was refused memory."""
        on_gpu = self._shard.device.type == "cuda"
        return str(failure) in str(error) or (on_gpu and isinstance(error, torch.OutOfMemoryError))


def _this_thread() -> tuple[int, str]:
    thread = threading.current_thread()
    return threading.get_ident(), f"thread '{thread.name}' ({threading.get_native_id()})"


class _MakesRoom(TorchDispatchMode):
    """PyTorch empties its cache when a GPU is full, but not while anybody is inside a pool: an operator that found no
    room there is asked once more with the cache emptied. One serves all pools that a thread is in, and whatever kept it
    from ending (an interrupt) the next one that is left ends it; until then it does nothing."""

    @staticmethod
    def begin() -> None:
        if not any(isinstance(mode, _MakesRoom) for mode in _get_current_dispatch_mode_stack()):
            _MakesRoom().__enter__()

    @staticmethod
    def end() -> None:
        from . import _cuda

        modes = _get_current_dispatch_mode_stack()
        if modes and isinstance(modes[-1], _MakesRoom) and not _cuda.is_inside_pool():
            modes[-1].__exit__(None, None, None)

    @staticmethod
    def _make_room() -> bool:
        if torch.cuda.is_current_stream_capturing():
            return False
        from . import _cuda

        return _cuda.empty_cache()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        try:
            return operator(*args, **(kwargs or {}))
        except torch.OutOfMemoryError:
            # An operator that writes into its arguments may have done half of its work: it is not asked twice.
            if getattr(operator, "_schema", None) is None or operator._schema.is_mutable or not self._make_room():
                raise
            made = operator(*args, **(kwargs or {}))
            _cpu.take_failure()  # it is over, and no later error is about it
            return made


class Shard:
    """A named set of tensors on one device that sleeps and wakes as one. Made by `shard()`.

    It stays for the life of the process, whoever drops it, until `close()`. A copy of it is itself; it is not pickled.
    """

    def __init__(self, raw: "_cpu.Shard", device: torch.device):
        self._raw = raw
        self.name: str = raw.name
        self.device = device

    @property
    def state(self) -> str:
        """"awake", "sealed", "staged_sleep", "asleep", "staged_wake", "waking", "corrupted" or "lost"."""
        return self._raw.state

    @property
    def is_awake(self) -> bool:
        """Whether its tensors may be used (while waking: where the ticket says ready)."""
        return self._raw.state in ("awake", "waking", "corrupted")

    def stats(self) -> "_cpu.ShardStats":
        """Blocks and bytes allocated, bytes mapped on the device and pinned on the host, sleeps and wakes. Blocks that
        were freed keep their bytes mapped, for the next ones, until the shard sleeps."""
        return self._raw.stats()

    def pool(self) -> "AbstractContextManager[Shard]":
        """New tensors that this thread makes inside live in the shard, and raise when they are used while it sleeps.
        Wrap construction, not training steps: each operator inside is looked at, too.

        Raises `Asleep` for a sleeping shard, `InvalidArgument` when the thread is inside it already or another thread
        leaves it. The scope is the thread's: coroutines and generators that overlap in one thread are all inside the
        one that was entered last, and may leave in any order. What no operator makes is not seen: on the emulated
        driver the buffers of a `copy.deepcopy` stay outside, and a random state (`torch.get_rng_state`) or a buffer of
        mkldnn is inside and does not raise; leave them alone while it sleeps. When the device is full, what leaves the
        block is `OutOfMemory`, which is a `torch.OutOfMemoryError`, too. On a GPU the shard does not sleep while a
        thread is inside (`Busy`), entering waits for a wake that is under way, and where PyTorch has no pools (another
        allocator than its own caching one) it is an `InvalidArgument`.
        """
        return _Pool(self)

    def mem_pool(self, for_graphs: bool = False) -> "torch.cuda.MemPool":
        """The pool of a shard on a GPU as PyTorch's own object, for `torch.cuda.use_mem_pool` and as `pool=` of graphs.

        for_graphs: keep its segments whole from now on, since a replay writes into parts that hold no tensor.
        """
        if self.device.type != "cuda":
            raise InvalidArgument(f"shard '{self.name}' is on {self.device}: a torch.cuda.MemPool belongs to a GPU; "
                                  "use pool()")
        from . import _cuda

        return (_cuda.graph_pool if for_graphs else _cuda.pool)(self._raw.key)

    def prepare(self, background: bool = False) -> None:
        """Pins host memory for what is live now, so that the next sleep only copies. See `stillwake.prepare`."""
        self._raw.prepare(arguments.flag(background, "background"))

    def trim(self) -> int:
        """Gives pinned host memory that no sleeping page needs back to the system; answers the bytes. While host views
        of a sleeping shard are in use it gives nothing."""
        return self._raw.trim()

    def close(self) -> None:
        """Ends a shard that has no live tensor; its name and addresses are free again. Else `Busy`, with figures."""
        with _making:
            self._raw.close()
            if _made.get((self.name, str(self.device))) is self:  # closed before, its name may be another's by now
                del _made[self.name, str(self.device)]

    def __copy__(self) -> "Shard":
        return self  # one a name and device, as asking for it again

    def __deepcopy__(self, memo: Any) -> "Shard":
        return self

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument(f"shard '{self.name}' cannot be pickled: its memory belongs to this process. Send its "
                              "name, and let the other process make a shard of its own: "
                              f"stillwake.shard({self.name!r})")

    def __repr__(self) -> str:
        try:
            state = self.state
        except InvalidArgument:
            state = "closed"
        return f"<stillwake shard '{self.name}' on {self.device}, {state}>"


def _device(device: Union[str, int, torch.device, None]) -> torch.device:
    if isinstance(device, int):
        device = f"cuda:{device}"
    emulated = driver().kind == "emulated"
    try:
        chosen = torch.device(device if device is not None else "cpu" if emulated else "cuda")
    except (RuntimeError, TypeError) as error:
        raise InvalidArgument(f"device={arguments.told(device)}: \"cuda\", \"cuda:N\", a torch.device or an index from "
                              "0 on is possible (\"cpu\" with the emulated driver)") from error
    if chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    if chosen.type == "cpu":
        if chosen.index:
            raise InvalidArgument(f"device={arguments.told(device)}: there is one CPU, \"cpu\"")
        return torch.device("cpu")
    return chosen


def _choice(kind: type, value: str, what: str):
    if not isinstance(value, str) or value not in kind.__members__:
        raise InvalidArgument(f"{what} {arguments.told(value)}: there are {', '.join(map(repr, kind.__members__))}")
    return kind.__members__[value]


def shard(name: str, *, policy: str = "preserve", device: Union[str, int, torch.device, None] = None,
          host_copy: str = "readable", backing: str = "retain", trust: bool = False,
          addresses: Optional[int] = None) -> Shard:
    """The shard of that name and device; asking again returns the same one.

    policy: what sleep owes to the content. "preserve": it comes back byte for byte; "discard": it is not copied and
        comes back zeroed; "frozen": kept, and promised not to change after the first sleep.
    device: "cuda:N", a `torch.device` or an index; by default the current CUDA device. With the emulated driver "cpu".
    host_copy: "readable" (host views work) or "packed" (zero pages take no bytes, host views do not work).
    backing: what becomes of the host copy after a wake. "retain": kept, so that unchanged pages are not copied again;
        "release": given back to the system.
    trust: with "frozen", unchanged without being looked at.
    addresses: bytes of addresses to reserve, by default as many as the device has memory.

    Raises `InvalidArgument` for a wrong value, and when the shard exists with other options.
    """
    if not isinstance(name, str) or not name or not name.isprintable():
        raise InvalidArgument("the name of a shard is a string of printable characters, at least one, not "
                              f"{arguments.told(name)}")
    if arguments.flag(trust, "trust") and policy != "frozen":
        raise InvalidArgument(f"trust=True goes with policy='frozen', not with policy={policy!r}")
    place = _device(device)
    with _making:
        raw = _cpu.make_shard(name, str(place), _choice(_cpu.Policy, policy, "policy"),
                              _choice(_cpu.HostCopy, host_copy, "host_copy"),
                              _choice(_cpu.Backing, backing, "backing"), trust,
                              arguments.size(addresses, "addresses"))
        return _made.setdefault((name, str(place)), Shard(raw, place))


def all_shards() -> tuple[Shard, ...]:
    """Every shard of the process, in the order in which they were made: those that C++ made, too (as "default", where
    Stillwake is PyTorch's allocator)."""
    return tuple(wrapper_of(raw) for raw in _cpu.shards())


def wrapper_of(raw: Optional["_cpu.Shard"]) -> Optional[Shard]:
    """The package's object for what the extension module answers."""
    if raw is None:
        return None
    place = torch.device(raw.device)
    with _making:
        return _made.setdefault((raw.name, str(place)), Shard(raw, place))
