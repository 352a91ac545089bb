# SPDX-License-Identifier: Apache-2.0
"""What FSDP2 keeps beside a module's sharded parameters: gathered ones, and gradients of those."""
from __future__ import annotations

import sys
from collections.abc import Iterator
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


def _groups(model: torch.nn.Module) -> Iterator[Any]:
    for module in modules_of(model):
        state = module._get_fsdp_state()
        # Newer versions keep several groups, and raise for the old name where there are.
        groups = getattr(state, "_fsdp_param_groups", None)
        yield from groups if groups is not None else [state._fsdp_param_group]


def drop_gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    """Drops the gradients of gathered parameters, which FSDP2 keeps between backwards that do not reduce
    (`set_requires_gradient_sync(False)`, `set_requires_all_reduce(False)`); answers them."""
    dropped = []
    for group in _groups(model):
        if group is None:
            continue
        if getattr(group, "_partial_reduce_output", None) is not None:
            dropped.append(group._partial_reduce_output)
            group._partial_reduce_output = None
        for param in group.fsdp_params:
            gathered = getattr(param, "_unsharded_param", None)
            if gathered is not None and gathered.grad is not None:
                dropped.append(gathered.grad)
                gathered.grad = None
            if getattr(param, "unsharded_accumulated_grad", None) is not None:
                dropped.append(param.unsharded_accumulated_grad)
                param.unsharded_accumulated_grad = None
    return dropped
