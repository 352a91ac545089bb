# SPDX-License-Identifier: Apache-2.0
"""What FSDP2 puts in the place of a module's parameters between its forward and its reshard."""
from __future__ import annotations

import sys
from typing import Any

import torch


def modules_of(model: torch.nn.Module) -> list[Any]:
    """The modules that FSDP2 manages; looks nothing up where nobody imported FSDP."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    return [] if kind is None else [module for module in model.modules() if isinstance(module, kind)]


def reshard(model: torch.nn.Module) -> int:
    """Frees what FSDP2 gathered, so that the module's parameters are the sharded ones; answers the modules managed.

    After a forward without a backward the root's parameters, and with `reshard_after_forward=False` all of them, are
    gathered ones, whose memory FSDP2 frees and takes again: it is never adopted and never sleeps.
    """
    managed = modules_of(model)
    for module in managed:
        module.reshard()
    return len(managed)
