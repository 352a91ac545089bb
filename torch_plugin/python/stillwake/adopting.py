# SPDX-License-Identifier: Apache-2.0
"""adopt: what exists already moves into a shard, once. audit: what lies outside every shard."""
from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Optional

import torch

from . import _cpu, arguments, fsdp, walk
from .driver import driver
from .errors import Asleep, Busy, Error, InvalidArgument, OutOfMemory
from .shards import Shard, wrapper_of


@dataclass(frozen=True)
class Adopted:
    """What an adopt did."""

    shard: str
    moved: int  #: storages copied into the shard
    taken_in: int  #: storages that lay in it already
    empty: int  #: storages of no bytes; a later resize_ allocates in the shard
    bytes: int  #: of those that moved

    def __str__(self) -> str:
        return _cpu.adopt_line(self.shard, self.moved, self.taken_in, self.empty, self.bytes)


@dataclass(frozen=True)
class StrayTensor:
    """A tensor that lives in no shard."""

    name: str
    bytes: int  #: of its storage
    device: torch.device

    def __str__(self) -> str:
        return f"{self.name} ({self.bytes} bytes on {self.device})"


class _Followed:
    """Modules and optimizers that were adopted, weakly, with their shards: a sleep looks at them again."""

    # Without a lock: the collector may run a finalizer in the middle of either function, which may call them again.
    # Each change and each copy of the dictionary is one step of the interpreter.
    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], tuple[weakref.ref, Shard]] = {}

    def add(self, tree: Any, shard: Shard) -> bool:
        """Whether it is new."""
        key = id(tree), id(shard)
        entry = weakref.ref(tree, lambda _: self._entries.pop(key, None)), shard
        return self._entries.setdefault(key, entry) is entry

    def of(self, shards: set[Shard]) -> list[tuple[Any, Shard]]:
        return [(tree, into) for ref, into in list(self._entries.values())
                if into in shards and (tree := ref()) is not None]


followed = _Followed()


def _is_elsewhere(tensor: torch.Tensor, kind: str) -> bool:
    """CPU tensors beside shards on a GPU ("cuda"): they hold no device memory, so there is nothing to sleep."""
    return tensor.device.type == "cpu" and kind != "cpu"


def check_tree(tree: Any) -> None:
    if isinstance(tree, walk.PLAIN_VALUES):
        raise InvalidArgument(f"adopt {tree!r}: a {type(tree).__name__} holds no tensors; a tensor, module, optimizer "
                              "or a list or mapping of them is needed")


def adopt(tree: Any, shard: Shard) -> Adopted:
    """Moves what exists already into a shard: one copy, once, identity kept.

    tree: a tensor, module, optimizer (its state and the tensors of its groups, not the parameters that it steps),
        mapping, sequence, dataclass or registered pytree of these. Wrapper subclasses (DTensor, quantized types) are
        taken by the tensors inside them. Every view and alias of a storage follows. Gradients are left alone.

    The storage object stays: `id`, tied weights, optimizer keys and DTensor metadata are as before; `data_ptr()`
    changes now and never again. Work queued on the device is waited for; use the tensors in no other thread meanwhile,
    and adopt before CUDA graphs, NCCL registrations, DLPack or numpy aliases of them exist. Modules and optimizers are
    followed (weakly): sleep looks for tensors that came later, and an optimizer's first step brings its state in.
    Modules of FSDP2 are resharded first: what is adopted are the sharded parameters.

    Raises `InvalidArgument`, with nothing moved, for what has no memory (or none yet: a lazy module) or layout that can
    sleep, belongs to another shard or device, or was not allocated by PyTorch; `OutOfMemory` when the device fills up:
    then each storage is wholly inside or wholly where it was, and the message says which. CPU tensors beside a CUDA
    shard are passed over, with a warning for parameters.
    """
    check_tree(tree)
    with walk.refusing_cycles(tree):
        return _adopt(tree, shard, keep_others=False)[0]


def adopt_the_rest(tree: Any, shard: Shard) -> tuple[Adopted, list[Shard]]:
    """The same, but what lives in another shard stays there; answers those shards, too."""
    return _adopt(tree, shard, keep_others=True)


def _adopt(tree: Any, shard: Shard, keep_others: bool) -> tuple[Adopted, list[Shard]]:
    if not isinstance(shard, Shard):
        raise InvalidArgument(f"adopt into {arguments.told(shard)}: the second argument is a shard, as "
                              "stillwake.shard() returns it")
    for part in _parts(tree):
        if isinstance(part, torch.nn.Module):
            fsdp.reshard(part)
    found: list[tuple[str, torch.UntypedStorage]] = []
    passed_over: list[str] = []
    for name, inner, storage, is_parameter in walk.named_storages(tree):
        if not _is_elsewhere(inner, shard.device.type):
            found.append((name, storage))
        elif is_parameter:
            passed_over.append(name)
    if passed_over:
        warnings.warn(f"stillwake.adopt: {len(passed_over)} parameters are on the CPU and hold no device memory "
                      f"({', '.join(passed_over[:3])}{', ...' if len(passed_over) > 3 else ''}); they stay there",
                      stacklevel=4)
    others: dict[Shard, None] = {}
    if keep_others:
        owners = [wrapper_of(raw) for raw in _cpu.shards_of([storage._cdata for _, storage in found])]
        others = {owner: None for owner in owners if owner is not None and owner is not shard}
        found = [entry for entry, owner in zip(found, owners) if owner is None or owner is shard]
    done = _cpu.adopt(shard._raw, [name for name, _ in found], [storage._cdata for _, storage in found])
    for part in _parts(tree):
        _follow(part, shard)
    return Adopted(shard.name, done.moved, done.taken_in, done.empty, done.bytes), list(others)


def _parts(tree: Any) -> Iterator[Any]:
    """What a tree of lists, tuples and mappings holds."""
    if isinstance(tree, (list, tuple)):
        for part in tree:
            yield from _parts(part)
    elif isinstance(tree, Mapping):
        yield from _parts(list(tree.values()))
    else:
        yield tree


def _follow(tree: Any, shard: Shard) -> None:
    if isinstance(tree, (torch.nn.Module, torch.optim.Optimizer)) and followed.add(tree, shard) \
            and isinstance(tree, torch.optim.Optimizer):
        _follow_first_step(tree, shard)
        tree.register_load_state_dict_post_hook(_take_in_what_was_loaded(weakref.ref(shard)))


def _take_in_state(optimizer: torch.optim.Optimizer, shard: Shard) -> None:
    """From a hook, after the optimizer has done its work: no failure of ours must make that look undone."""
    try:
        adopt_the_rest(dict(walk.named_tensors(optimizer)), shard)
    except Error as failure:
        _tell_what_stays("optimizer state stays", shard, failure)


def _tell_what_stays(what: str, shard: Shard, failure: Error) -> None:
    until = "" if isinstance(failure, InvalidArgument) else " until its next sleep"  # it never can, or cannot now
    warnings.warn(f"stillwake: {what} outside of shard '{shard.name}'{until}: {failure}", stacklevel=4)


def take_in_strays(shard: Shard, strays: list[tuple[str, Optional[torch.UntypedStorage]]]) -> None:
    """From a sleep, which goes on without what cannot be taken in: another thread is in a transition of the shard, the
    device has no room to move it, or its memory cannot sleep. The next sleep finds it again."""
    stay: list[str] = []
    why: Error = InvalidArgument("sparse and other tensors without one strided storage cannot sleep")
    can = [(name, storage) for name, storage in strays if storage is not None]
    try:
        _cpu.adopt(shard._raw, [name for name, _ in can], [storage._cdata for _, storage in can])
    except (Asleep, Busy, InvalidArgument, OutOfMemory):
        for name, storage in can:  # one by one: what can be moved is
            try:
                _cpu.adopt(shard._raw, [name], [storage._cdata])
            except (Asleep, Busy, InvalidArgument, OutOfMemory) as failure:
                why = failure
                stay.append(name)
    stay += [name for name, storage in strays if storage is None]
    if stay:
        names = ", ".join(stay[:3]) + (", ..." if len(stay) > 3 else "")
        _tell_what_stays(f"{len(stay)} tensors ({names}) stay", shard, why)


def _can_take_in(shard: Shard) -> bool:
    try:
        return shard.is_awake
    except InvalidArgument:  # closed meanwhile
        return False


def _follow_first_step(optimizer: torch.optim.Optimizer, shard: Shard) -> None:
    """State appears at the first step that finds the shard awake: it is taken in then, and the hook goes. (What appears
    later still is a stray that the next sleep finds.)"""
    if optimizer.state:
        return
    handle = None

    def take_in(stepped: torch.optim.Optimizer, *_: Any) -> None:
        if _can_take_in(shard):
            handle.remove()
            _take_in_state(stepped, shard)

    handle = optimizer.register_step_post_hook(take_in)


def _take_in_what_was_loaded(shard: "weakref.ref[Shard]"):
    def take_in(loaded: torch.optim.Optimizer) -> None:
        if (into := shard()) is not None and _can_take_in(into):
            _take_in_state(loaded, into)

    return take_in


def strays_of(trees: list[tuple[Any, Optional[Shard]]]
              ) -> list[tuple[StrayTensor, Optional[torch.UntypedStorage], Optional[Shard]]]:
    """What lies in no shard, once a storage, with the shard of the tree that it was found in. No storage: a tensor that
    cannot sleep (sparse ones have several)."""
    names: list[str] = []
    inners: list[torch.Tensor] = []
    homes: list[Optional[Shard]] = []
    for tree, shard in trees:
        with walk.refusing_cycles(tree):
            for name, tensor in walk.named_tensors(tree, "", with_params=shard is None):
                for inner in walk.innermost(tensor):
                    names.append(name)
                    inners.append(inner)
        homes += [shard] * (len(inners) - len(homes))
    found = []
    for at in _cpu.find_strays(inners, driver().kind != "cuda"):
        storage = walk.storage_or_none(inners[at])
        size = walk.nbytes(inners[at]) if storage is None else storage.nbytes()
        found.append((StrayTensor(names[at], size, inners[at].device), storage, homes[at]))
    return found


def audit(*trees: Any) -> list[StrayTensor]:
    """The tensors in modules, optimizers and pytrees that live in no shard: name, bytes of the storage, device.

    Each storage once. An empty list means that a sleep of every shard gives all their memory back. Nothing is changed.
    Of a module it looks at parameters and buffers; a tensor kept as a plain attribute is seen when it is passed itself.
    The scales and zero points of a per-channel quantized tensor are part of its type and stay outside, unseen.
    """
    return [stray for stray, _, _ in strays_of([(tree, None) for tree in trees if tree is not None])]


def shards_of(tensor: torch.Tensor, name: str) -> list[Optional[Shard]]:
    """The shards that the parts of a tensor live in: of a wrapper subclass there may be several."""
    arguments.tensor(tensor, name)
    return [wrapper_of(_cpu.shard_of(walk.storage_of("tensor", inner)._cdata)) for inner in walk.innermost(tensor)]


def shard_of(tensor: torch.Tensor) -> Optional[Shard]:
    """The shard that a tensor lives in, or None; of a wrapper subclass, the one of its first part."""
    return next(iter(shards_of(tensor, "shard_of")), None)


def address(tensor: torch.Tensor) -> int:
    """What `tensor.data_ptr()` is while awake; answered asleep, too. 0 for an empty tensor."""
    arguments.tensor(tensor, "address")
    inner = walk.innermost(tensor)[0]
    start = _cpu.address(walk.storage_of("tensor", inner)._cdata)
    return start + inner.storage_offset() * inner.element_size() if start and inner.numel() else 0
