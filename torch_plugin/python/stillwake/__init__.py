# SPDX-License-Identifier: Apache-2.0
"""CUDA memory that sleeps and wakes without one pointer changing, for PyTorch.

    import stillwake as sw

    params, optim = sw.shard("params"), sw.shard("optim")
    with params.pool():              # new tensors
        model = build()
    sw.adopt(optimizer, optim)       # or what exists already: one move, identity kept
    sw.sleep()                       # the device memory is free
    view = sw.host_view(model.weight)  # a CPU tensor on the pinned copy
    sw.wake()                        # the same addresses, the same bytes
"""
import os

import torch

from ._build import TORCH as _BUILT_FOR
from ._build import VERSION as __version__

_FOUND = ".".join(torch.__version__.split(".")[:2])
if _FOUND != _BUILT_FOR:
    raise ImportError(f"this build of stillwake is for torch {_BUILT_FOR} and found torch {torch.__version__}; build "
                      "it again beside this torch, in its source tree: "
                      "pip install --no-build-isolation --force-reinstall .")

from . import _cpu, errors  # noqa: E402

_cpu.set_error_classes(errors.BY_CODE)
if torch.backends.cuda.is_built():
    # Gives shards on a GPU their pools. A build beside a torch without CUDA has no such module, and needs none.
    from . import _cuda  # noqa: E402

    _cuda.set_error_classes(errors.BY_CODE)

from .adopting import Adopted, StrayTensor, address, adopt, audit, shard_of  # noqa: E402
from .attaching import Job, JobReport, attach  # noqa: E402
from .driver import Driver, driver  # noqa: E402
from .errors import (Asleep, Busy, Corrupted, DriverCallFailed, DriverMissing, DriverTooOld, Error,  # noqa: E402
                     InvalidArgument, Lost, OutOfHostMemory, OutOfMemory, OverBudget, RankFailed, Stray, TimedOut)
from .global_mode import install, library_path, use  # noqa: E402
from .host_views import host_view  # noqa: E402
from .shards import Shard, shard  # noqa: E402
from .transitions import awake, is_awake, prepare, sleep, stats, swap, trim, wake  # noqa: E402

os.register_at_fork(after_in_child=_cpu.lose_in_child)  # a child has none of the memory: tensors raise there

Report, ReportStep, ShardStats, Ticket = _cpu.Report, _cpu.ReportStep, _cpu.ShardStats, _cpu.Ticket

__all__ = [
    "Adopted", "Asleep", "Busy", "Corrupted", "Driver", "DriverCallFailed", "DriverMissing", "DriverTooOld", "Error",
    "InvalidArgument", "Job", "JobReport", "Lost", "OutOfHostMemory", "OutOfMemory", "OverBudget", "RankFailed",
    "Report", "ReportStep", "Shard", "ShardStats", "Stray", "StrayTensor", "Ticket", "TimedOut", "address", "adopt",
    "attach", "audit", "awake", "driver", "host_view", "install", "is_awake", "library_path", "prepare", "shard",
    "shard_of", "sleep", "stats", "swap", "trim", "use", "wake",
]
