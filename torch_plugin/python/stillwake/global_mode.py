# SPDX-License-Identifier: Apache-2.0
"""Stillwake as PyTorch's allocator for every CUDA tensor of the process."""
from __future__ import annotations

from typing import Optional

import torch

from . import _cpu, arguments
from .driver import driver
from .errors import Busy, InvalidArgument
from .shards import Shard, wrapper_of

MALLOC, FREE = "stillwake_torch_malloc", "stillwake_torch_free"


def library_path() -> str:
    """The shared library whose functions `stillwake_torch_malloc` and `stillwake_torch_free` are PyTorch's
    `CUDAPluggableAllocator`:

        allocator = torch.cuda.memory.CUDAPluggableAllocator(sw.library_path(), "stillwake_torch_malloc",
                                                             "stillwake_torch_free")
        torch.cuda.memory.change_current_allocator(allocator)
    """
    return _cpu.library_path()


def install() -> None:
    """Makes Stillwake PyTorch's allocator for every CUDA tensor of this process. Once, before CUDA starts.

    Every tensor then lives in the shard that `use` names for its thread, or in the shard "default" of its device. In
    this mode PyTorch itself raises from its memory statistics and snapshots, CUDA IPC, `MemPool` and CUDA graph trees
    (`torch.compile(mode="reduce-overhead")`); a shard's own figures are `stillwake.stats`.

    Raises `Busy` when CUDA has started: PyTorch cannot change its allocator then; use `Shard.pool` and `adopt`.
    """
    if driver().kind != "cuda":
        raise InvalidArgument("stillwake.install: PyTorch's CUDA allocator needs the CUDA driver, and this process has "
                              "the emulated one; CPU tensors go into shards by shard.pool() and stillwake.adopt")
    if torch.cuda.is_initialized():
        raise Busy("stillwake.install: CUDA has started in this process, and PyTorch cannot change its allocator any "
                   "more; call it first, or use shard.pool() and stillwake.adopt")
    if not torch.backends.cuda.is_built():
        raise InvalidArgument("stillwake.install: this torch is built without CUDA and has no CUDA allocator to change")
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library_path(), MALLOC, FREE)
    torch.cuda.memory.change_current_allocator(allocator)


class use:  # noqa: N801  (used as a function and as a context manager)
    """Names the shard that the calling thread's tensors go to when Stillwake is PyTorch's allocator (`install`).

    `use(shard)` from now on; `with use(shard):` for a block; `use(None)` goes back to the default shard.
    """

    def __init__(self, shard: Optional[Shard]):
        if shard is not None and not isinstance(shard, Shard):
            raise InvalidArgument(f"use({arguments.told(shard)}): a shard as stillwake.shard() returns it, or None")
        self._before = wrapper_of(_cpu.used())
        _cpu.use(None if shard is None else shard._raw)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        _cpu.use(None if self._before is None else self._before._raw)
