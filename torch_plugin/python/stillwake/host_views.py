# SPDX-License-Identifier: Apache-2.0
"""host_view: sleeping tensors as CPU tensors on their pinned bytes, without a copy."""
from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, MappingView
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _cpu, arguments, walk
from .errors import InvalidArgument
from .shards import Shard


def _rebuilt(tensor: torch.Tensor, views: dict[int, torch.Tensor]) -> torch.Tensor:
    """The same wrapper (or none) around the views of what is inside."""
    if not is_traceable_wrapper_subclass(tensor):
        return views[id(tensor)]
    if type(tensor) is walk.dtensor():  # the general way makes a new spec each time, which takes three times as long
        local = _rebuilt(tensor._local_tensor, views)
        return tensor if local is tensor._local_tensor else type(tensor)(local, tensor._spec, requires_grad=False)
    attributes, context = tensor.__tensor_flatten__()
    inside = {name: _rebuilt(getattr(tensor, name), views) for name in attributes}
    if all(inside[name] is getattr(tensor, name) for name in attributes):
        return tensor
    return type(tensor).__tensor_unflatten__(inside, context, tensor.size(), tensor.stride())


def _holds_tensors(leaf: Any) -> bool:
    """Whether an object that PyTorch's pytrees do not open has tensors or modules as attributes."""
    if isinstance(leaf, (torch.Tensor, type)):
        return False
    return any(isinstance(each, (torch.Tensor, torch.nn.Module)) for each in getattr(leaf, "__dict__", {}).values())


def _state_dict(module: torch.nn.Module) -> Any:
    try:
        return module.state_dict(keep_vars=True)
    except RuntimeError as error:
        if "is asleep" not in str(error):
            raise
        raise InvalidArgument(f"host_view: state_dict() of this {type(module).__name__} computes with its tensors (a "
                              "state-dict hook); give dict(module.named_parameters()) instead") from error


def host_view(tree: Any, write: bool = False) -> Any:
    """The same structure with CPU tensors on the host copy, for as long as the shards sleep. Copies nothing.

    tree: a tensor, a registered pytree of tensors (a state dict, a list), a module or an optimizer; of the last two,
        their state dict. A DTensor becomes one of the same spec over a CPU tensor. What lives in no shard is passed
        through as it is.
    write: what is written into the views is what the next wake restores (and reports as unverified). Otherwise they are
        read-only by contract.

    Each view has the dtype, shape, stride and storage offset of its tensor, and is a plain tensor where that was of a
    subclass that wraps none; tensors that share a storage share the view's, which has the storage's size. Views raise
    once the shard wakes. While asleep, state dicts, EMA updates
    (`lerp_`) and `torch.distributed.checkpoint` work on them.

    Raises `Busy` for a tensor of a shard that is awake, `InvalidArgument` for a shard whose policy is "discard" or
    whose host copy is "packed".
    """
    arguments.flag(write, "write")
    if isinstance(tree, torch.nn.Module):
        tree = _state_dict(tree)
    elif isinstance(tree, torch.optim.Optimizer):
        tree = tree.state_dict()
    with walk.refusing_cycles(tree):
        leaves, spec = pytree.tree_flatten(tree)
    for leaf in leaves:
        if isinstance(leaf, (torch.nn.Module, torch.optim.Optimizer)):
            raise InvalidArgument(f"host_view: a {type(leaf).__name__} inside of a {type(tree).__name__} has no views; "
                                  "give its state_dict(), or view it by itself")
        if isinstance(leaf, (Iterator, MappingView, Shard)) or _holds_tensors(leaf):
            raise InvalidArgument(f"host_view: a {type(leaf).__name__} holds its tensors out of reach; give a list or "
                                  "a dict of them")
        if isinstance(leaf, (Mapping, set, frozenset)) or (
                dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)):
            raise InvalidArgument(f"host_view: a {type(leaf).__name__} is no registered pytree, so a copy of it with "
                                  "views inside cannot be made; give a dict or a list of its tensors")
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    inner = [part for tensor in tensors for part in walk.innermost(tensor)]
    views = dict(zip(map(id, inner), _cpu.host_views(inner, write)))
    return pytree.tree_unflatten(
        [_rebuilt(leaf, views) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)
