# SPDX-License-Identifier: Apache-2.0
"""attach: a training job that sleeps and wakes between steps, on one rank or on many."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, Optional, Union

import torch

from . import _cpu, adopting, arguments, fsdp, ranks, transitions, walk
from .errors import InvalidArgument
from .shards import Shard, shard


@dataclass(frozen=True)
class JobReport:
    """What a transition of a job did on this rank."""

    report: "_cpu.Report"  #: of the shards
    gradients_dropped: int = 0
    modules_resharded: int = 0

    gradient_bytes: int = 0  #: of the gradients that were dropped

    def __str__(self) -> str:
        dropped = f"; {self.gradients_dropped} gradients of {self.gradient_bytes} bytes dropped"
        return str(self.report) + (dropped if self.gradients_dropped else "")


def _listed(given: Any, kind: type, what: str) -> list[Any]:
    found = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
    for each in found:
        if not isinstance(each, kind):
            raise InvalidArgument(f"attach: {what} takes one {kind.__name__} or a list of them, not "
                                  f"{type(each).__name__}")
    return found


def _as_shard(given: Union[str, Shard]) -> Shard:
    return given if isinstance(given, Shard) else shard(given)


def _check_shard(given: Any, name: str) -> None:
    if not isinstance(given, (str, Shard)):
        raise InvalidArgument(f"attach: {name}={arguments.told(given)}: a shard or the name of a shard is needed")


class Job:
    """A training job whose parameters, buffers, optimizer state and EMA sleep and wake as one. Made by `attach`."""

    def __init__(self, models: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer], shards: list[Shard],
                 group: Any, strays: str, ema: Optional[tuple[Any, Shard]]):
        self._models = models
        self._optimizers = optimizers
        self.shards: tuple[Shard, ...] = tuple(dict.fromkeys(shards))
        self._group = group
        self._strays = strays
        self._ema = [] if ema is None else [ema]

    @property
    def is_awake(self) -> bool:
        """Whether every shard of this rank is awake."""
        return all(each.is_awake for each in self.shards)

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument("a Job cannot be pickled: its shards' memory belongs to this process. Send its state "
                              "dicts, and call stillwake.attach in the other process")

    def _drop_gradients(self) -> list[torch.Tensor]:
        """Gradients live in PyTorch's memory and would keep the device; a sleep belongs between steps. Answers them."""
        dropped = [gradient for model in self._models for gradient in fsdp.drop_gradients(model)]
        owners = [parameter for model in self._models for module in model.modules()
                  for parameter in module._parameters.values() if parameter is not None]
        owners += [parameter for optimizer in self._optimizers for group in optimizer.param_groups
                   for parameter in group["params"]]
        for parameter in owners:
            if parameter.grad is not None:
                dropped.append(parameter.grad)
                parameter.grad = None
        return dropped

    def sleep(self, timeout: Optional[float] = None, checked: bool = False) -> JobReport:
        """Between two steps: reshards what FSDP2 gathered, drops gradients, puts the shards to sleep, empties PyTorch's
        cache, and waits until every rank did. Asleep already: a no-op.

        timeout: seconds to wait for work in flight. Returns this rank's report.
        Raises what `stillwake.sleep` raises when this rank fails: it is awake and unharmed, but for gradients. Raises
        `RankFailed`, naming the others, when only they do. Either way the same call again does what is missing.
        """
        with ranks.together(self._group, "sleep"):
            resharded = sum(fsdp.reshard(model) for model in self._models)
            dropped = self._drop_gradients()
            count, size = len(dropped), sum(map(walk.nbytes, dropped))
            del dropped  # their memory goes with them
            report = transitions.sleep_with(self.shards, self._ema, timeout, checked, self._strays)
            _empty_cache()
        return JobReport(report, count, resharded, size)

    def wake(self, timeout: Optional[float] = None, first: Iterable[torch.Tensor] = ()) -> JobReport:
        """Wakes the shards and waits until every rank did. Awake already: a no-op.

        timeout: seconds to wait for device memory. first: tensors that are wanted early.
        Raises what `stillwake.wake` raises when this rank fails, with what that says of its state; `RankFailed` when
        only others do. The same call again does what is missing.
        """
        with ranks.together(self._group, "wake"):
            _empty_cache()
            report = transitions.wake(*self.shards, timeout=timeout, first=first)
        return JobReport(report)


def _empty_cache() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def attach(model: Union[torch.nn.Module, list[torch.nn.Module]],
           optimizer: Union[torch.optim.Optimizer, list[torch.optim.Optimizer], None] = None, *, ema: Any = None,
           params: Union[str, Shard] = "params", optim: Union[str, Shard] = "optim",
           ema_shard: Union[str, Shard] = "ema", group: Any = None, strays: str = "adopt") -> Job:
    """Adopts a training job and answers the object that knows the order of things: `job.sleep()`, `job.wake()`.

    model: a module (plain, FSDP2, DDP, compiled) or a list of them, into the shard `params`.
    optimizer: an optimizer or a list of them, into the shard `optim`; state that appears later is taken in.
    ema: a module, mapping or list of tensors, into the shard `ema`.
    group: a process group with a CPU backend (gloo), through which ranks tell each other how it went; by default the
        one that the program initialised. None is ever made or destroyed here.
    strays: what a sleep does with tensors that came later: see `stillwake.sleep`.

    What lives in a shard already (a frozen base that was adopted into a shard of its own) stays there, and that shard
    is one of the job's, too. Jobs that sleep apart need shards of their own: give other names. Every rank attaches,
    after FSDP2's fully_shard and before CUDA graphs are captured.

    Raises as `stillwake.adopt` when this rank fails, `RankFailed` when only others do, and `InvalidArgument` when
    several ranks have no group with a CPU backend.
    """
    models = _listed(model, torch.nn.Module, "model")
    optimizers = _listed(optimizer, torch.optim.Optimizer, "optimizer")
    if not models:
        raise InvalidArgument("attach: there is no model to attach")
    transitions.check_strays(strays)
    for given, name in ((params, "params"), (optim, "optim"), (ema_shard, "ema_shard")):
        _check_shard(given, name)
    chosen = ranks.cpu_group(group)
    homes = [(_as_shard(params), models)]
    if optimizers:
        homes.append((_as_shard(optim), optimizers))
    if ema is not None:
        homes.append((_as_shard(ema_shard), [ema]))
    for _, trees in homes:
        for tree in trees:
            adopting.check_tree(tree)
            list(walk.named_storages(tree))  # what cannot be walked is refused before anything moves
    shards: list[Shard] = []
    with ranks.together(chosen, "attach"):
        for into, trees in homes:
            shards.append(into)
            for tree in trees:
                shards += adopting.adopt_the_rest(tree, into)[1]
    return Job(models, optimizers, shards, chosen, strays, None if ema is None else (ema, homes[-1][0]))
