# SPDX-License-Identifier: Apache-2.0
"""The errors of Stillwake: one class a kind, all of them `Error`.

Each has `code` (the number that C and C++ have for it), `call` (the driver call that failed, or "") and `driver_error`
(the driver's own number, or 0). "The device is full" is `OutOfMemory` alone; a sleeping, busy or lost shard never looks
like it.
"""
import torch


class Error(RuntimeError):
    """Any failure of a call of Stillwake. What the call's docstring says about failure holds."""

    code = 0
    call = ""
    driver_error = 0


class OutOfMemory(Error, torch.OutOfMemoryError):
    """The device has too few free bytes; the message has the figures. Also a `torch.OutOfMemoryError`."""

    code = 1


class OutOfHostMemory(Error, MemoryError):
    """The system refused to give or to pin host memory."""

    code = 2


class OverBudget(Error):
    """The budget of pinned host memory (the user's or the control group's) would be exceeded."""

    code = 3


class Asleep(Error):
    """The shard sleeps; wake it first."""

    code = 4


class Busy(Error):
    """A transition or a capture is under way, or the content changed meanwhile."""

    code = 5


class InvalidArgument(Error, ValueError):
    """The caller's value is wrong; the message names it and what would be right."""

    code = 6


class DriverMissing(Error):
    """No CUDA driver on this machine, and the emulated one was not asked for."""

    code = 7


class DriverTooOld(Error):
    """The driver lacks a call that is needed; the message names it."""

    code = 8


class DriverCallFailed(Error):
    """Any other failure of a driver call."""

    code = 9


class Corrupted(Error):
    """A wake restored other bytes than the sleep had saved; the shard keeps its backing and refuses to sleep."""

    code = 10


class Lost(Error):
    """The device's context is dead, or this process is a fork of the one that opened the driver."""

    code = 11


class RankFailed(Error):
    """Another rank failed, or gave no verdict in time. `ranks` are the global ranks that said that they failed."""

    code = 12
    ranks: tuple = ()


class TimedOut(Error, TimeoutError):
    """The time that the caller gave ran out."""

    code = 13


class Stray(Error):
    """Tensors that should live in a shard do not; the message names them. `strays` lists them as (name, bytes)."""

    strays: tuple = ()


BY_CODE = {kind.code: kind for kind in (OutOfMemory, OutOfHostMemory, OverBudget, Asleep, Busy, InvalidArgument,
                                        DriverMissing, DriverTooOld, DriverCallFailed, Corrupted, Lost, RankFailed,
                                        TimedOut)}
