# SPDX-License-Identifier: Apache-2.0
"""Finding tensors: in modules, optimizers, mappings, sequences and registered pytrees, down to the storages."""
from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Optional

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .errors import InvalidArgument

Named = tuple[str, torch.Tensor]
PLAIN_VALUES = (int, float, complex, str, bytes, bool, type(None))
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def _of_optimizer(optimizer: torch.optim.Optimizer, name: str, with_params: bool) -> Iterator[Named]:
    number = {}
    for g, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            number.setdefault(parameter, len(number))
            if with_params:
                yield _join(name, f"params[{number[parameter]}]"), parameter
        for key, value in group.items():
            if key != "params":
                yield from named_tensors(value, _join(name, f"param_groups[{g}].{key}"), with_params)
    for parameter, state in optimizer.state.items():
        label = number.get(parameter, "?")
        yield from named_tensors(state, _join(name, f"state[{label}]"), with_params)


def named_tensors(tree: Any, name: str = "", with_params: bool = False) -> Iterator[Named]:
    """Every tensor in a tensor, module, optimizer, mapping, sequence, dataclass or registered pytree, with its name.

    Tied tensors appear once under each name. Gradients are left alone. The parameters that an optimizer steps belong
    to the module and appear only `with_params`. What is no tensor (numbers, strings, None) is passed over; an object
    that is none of these raises `InvalidArgument` when it stands at the top, since its tensors cannot be found.
    """
    if isinstance(tree, torch.Tensor):
        yield name or "tensor", tree
    elif isinstance(tree, torch.nn.Module):
        prefix = _join(name, "")
        for key, parameter in tree.named_parameters(remove_duplicate=False):
            yield prefix + key, parameter
        for key, buffer in tree.named_buffers(remove_duplicate=False):
            yield prefix + key, buffer
    elif isinstance(tree, torch.optim.Optimizer):
        yield from _of_optimizer(tree, name, with_params)
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            if type(value) in _PLAIN:  # thousands of them: a walk of its own for each takes several times as long
                yield _join(name, str(key)), value
            else:
                yield from named_tensors(value, _join(name, str(key)), with_params)
    elif isinstance(tree, (list, tuple, set, frozenset)):
        for index, value in enumerate(tree):
            yield from named_tensors(value, f"{name}[{index}]", with_params)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from named_tensors(getattr(tree, field.name), _join(name, field.name), with_params)
    elif not isinstance(tree, type) and type(tree) in pytree.SUPPORTED_NODES:
        for path, value in pytree.tree_flatten_with_path(tree)[0]:
            yield from named_tensors(value, name + pytree.keystr(path), with_params)
    elif not name and not isinstance(tree, PLAIN_VALUES):
        raise InvalidArgument(f"a {type(tree).__name__} is no tensor, module, optimizer, mapping, sequence, dataclass "
                              "or registered pytree; give its tensors, for example as a list")


@contextmanager
def refusing_cycles(tree: Any) -> Iterator[None]:
    """What holds itself ends in Python's limit of recursion: `InvalidArgument`."""
    try:
        yield
    except RecursionError:
        raise InvalidArgument(f"this {type(tree).__name__} is nested too deep to be walked, or holds itself") from None


def dtensor() -> Any:
    """The class DTensor where somebody has imported it, else None."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def innermost(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors with memory of their own inside wrapper subclasses (DTensor, quantized types); else itself."""
    kind = type(tensor)
    if kind in _PLAIN:
        return (tensor,)
    if kind is dtensor():
        local = tensor._local_tensor
        return (local,) if type(local) in _PLAIN else innermost(local)
    if is_traceable_wrapper_subclass(tensor):
        return tuple(part for attribute in tensor.__tensor_flatten__()[0]
                     for part in innermost(getattr(tensor, attribute)))
    return (tensor,)


def nbytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's elements, those of sparse and wrapped ones by what is inside."""
    return sum(part.numel() * part.element_size() for inner in innermost(tensor) for part in _inside_sparse(inner))


def _inside_sparse(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors that hold the elements of a sparse one; of others itself."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def is_still_lazy(tensor: torch.Tensor) -> bool:
    """Whether it is the parameter or buffer of a lazy module (LazyLinear) before its first forward."""
    return isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)


def storage_of(name: str, tensor: torch.Tensor) -> torch.UntypedStorage:
    """The storage of an innermost tensor; `InvalidArgument` for one that has none."""
    if is_still_lazy(tensor):
        raise InvalidArgument(f"'{name}' ({type(tensor).__name__}) has no shape and no memory before its lazy module "
                              "ran; run one forward first")
    if tensor.layout != torch.strided:
        raise InvalidArgument(f"'{name}' has layout {tensor.layout}: only strided tensors have a storage that can "
                              "sleep")
    if tensor.device.type == "meta":
        raise InvalidArgument(f"'{name}' is on the meta device and has no memory; materialise it first (to_empty)")
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError) as error:
        raise InvalidArgument(f"'{name}' ({type(tensor).__name__}) has no storage that can sleep: {error}") from error


def storage_or_none(tensor: torch.Tensor) -> Optional[torch.UntypedStorage]:
    """The storage of an innermost tensor; None for one that has none (sparse, opaque, a transform's)."""
    try:
        return tensor.untyped_storage() if tensor.layout == torch.strided else None
    except (NotImplementedError, RuntimeError):
        return None


class NamedStorage(NamedTuple):
    """An innermost tensor, with the name and kind of the tensor of the tree that it belongs to."""

    name: str
    inner: torch.Tensor
    storage: torch.UntypedStorage
    is_parameter: bool


def named_storages(tree: Any) -> Iterator[NamedStorage]:
    """What holds the bytes of everything in the tree, storages repeated as often as they are used."""
    with refusing_cycles(tree):
        for name, tensor in named_tensors(tree):
            for inner in innermost(tensor):
                yield NamedStorage(name, inner, storage_of(name, inner), isinstance(tensor, torch.nn.Parameter))
