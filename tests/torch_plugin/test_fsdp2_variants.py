# SPDX-License-Identifier: Apache-2.0
"""The ways in which FSDP2 and DDP trainings are built: each sleeps between its steps and equals a control run, bit for
bit."""
import pytest
import stillwake as sw
import torch
import torch._dynamo.testing
import torch.distributed as dist
from test_fsdp2 import adamw, attached, data_pointers, fsdp_params, sharded
from torch.distributed._composable import checkpoint
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from torch.nn.parallel import DistributedDataParallel
from training import WIDTH, WORDS, Training, Words, compiled_while_it_slept, local, same_bytes

OPTIMIZERS = {
    "AdamW, one by one": lambda model: adamw(model, foreach=False),
    "AdamW, foreach": lambda model: adamw(model, foreach=True),
    "AdamW, fused": lambda model: adamw(model, fused=True),
    "AdamW, amsgrad": lambda model: adamw(model, amsgrad=True),
    "AdamW, tensor learning rate": lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01)),
    "SGD with momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "SGD without state": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "two groups": lambda model: torch.optim.AdamW([{"params": model.blocks.parameters(), "lr": 0.02},
                                                   {"params": [model.gain, model.embed.weight]}], lr=0.01),
}


def mixed(**options):
    return sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), **options)


def recomputed():
    model = Words()
    for block in model.blocks:
        checkpoint(block)
    return sharded(model)


def with_lora():
    """A frozen base, and adapters that train."""
    model = Words()
    model.requires_grad_(False)
    for block in model.blocks:
        block.up = Adapted(block.up)
    return sharded(model)


class Adapted(torch.nn.Module):
    def __init__(self, base, rank=3):
        super().__init__()
        self.base = base
        self.into = torch.nn.Linear(base.in_features, rank, bias=False)
        self.out = torch.nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.out(self.into(x))


def compiled():
    torch._dynamo.reset()
    model = Words()
    for block in model.blocks:
        block.compile(backend="aot_eager")
    return sharded(model)


def trainable(model):
    return torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.01)


def replicated(**options):
    return DistributedDataParallel(Words(), **options)


MODELS = {
    "plain": (sharded, adamw),
    "mixed precision": (mixed, adamw),
    "no reshard after forward": (lambda: sharded(reshard_after_forward=False), adamw),
    "mixed precision, no reshard": (lambda: mixed(reshard_after_forward=False), adamw),
    "activation checkpointing": (recomputed, adamw),
    "CPU offload": (lambda: sharded(offload_policy=CPUOffloadPolicy(pin_memory=False)), adamw),
    "offload policy without offload": (lambda: sharded(offload_policy=OffloadPolicy()), adamw),
    "LoRA on a frozen base": (with_lora, trainable),
    "compiled blocks": (compiled, adamw),
    "DDP": (replicated, adamw),
    "DDP, gradients as views of buckets": (lambda: replicated(gradient_as_bucket_view=True), adamw),
    "DDP, static graph": (lambda: replicated(static_graph=True), adamw),
}


def trains_the_same(make_model, make_optimizer):
    control = Training(make_model, make_optimizer).step(6)
    training = Training(make_model, make_optimizer)
    job = attached(training)
    training.step(2)
    if training.optimizer.state:
        assert sw.audit(training.model, training.optimizer, training.ema) == []
    pointers = data_pointers(training)
    for _ in range(2):
        slept = job.sleep().report
        assert slept.shards_moved == 3 and slept.live > 0
        assert all(parameter.grad is None for parameter in training.model.parameters())
        job.wake()
        assert data_pointers(training) == pointers
        training.step(2)
    training.expect_same_as(control)


def by_model(name):
    trains_the_same(*MODELS[name])


def by_optimizer(name):
    trains_the_same(sharded, OPTIMIZERS[name])


@pytest.mark.parametrize("name", MODELS)
def test_a_training_that_slept_equals_one_that_did_not_whatever_the_model(two_ranks, name):
    two_ranks.run(by_model, name)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_that_slept_equals_one_that_did_not_whatever_the_optimizer(two_ranks, name):
    two_ranks.run(by_optimizer, name)


class Even(torch.nn.Module):
    """Every parameter has as many rows on one rank as on the other: PyTorch's LBFGS flattens no others."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS + 1, WIDTH)
        self.head = torch.nn.Linear(WIDTH, WORDS + 1)

    def forward(self, words):
        return self.head(torch.tanh(self.embed(words)))


def with_a_history_of_directions():
    """LBFGS makes new state at every step, of DTensors that each rank has whole."""
    def make():
        return Training(lambda: sharded(Even()),
                        lambda model: torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=3))

    control, training = make().step(6), make()
    job = attached(training)
    for _ in range(3):
        training.step(2)
        slept = job.sleep().report
        assert slept.shards_moved == 3
        assert sw.audit(training.model, training.optimizer, training.ema) == []
        with pytest.raises(RuntimeError, match="asleep"):
            next(iter(training.optimizer.state.values()))["old_dirs"][0].sum()
        job.wake()
    training.expect_same_as(control)


def test_lbfgs_over_dtensors_sleeps_with_its_history(two_ranks):
    two_ranks.run(with_a_history_of_directions)


def frozen_base_of_its_own():
    control = Training(with_lora, trainable).step(4)
    training = Training(with_lora, trainable)
    base = {name: parameter for name, parameter in training.model.named_parameters() if not parameter.requires_grad}
    frozen = sw.shard(f"base-{dist.get_rank()}", policy="frozen", trust=True)
    sw.adopt(base, frozen)
    training.step()
    job = attached(training)
    assert frozen in job.shards and len(job.shards) == 4
    assert all(sw.shard_of(parameter) is frozen for parameter in base.values() if local(parameter).numel())
    storages = [local(parameter.detach()).untyped_storage() for parameter in base.values()]
    bytes_of_base = sum({storage._cdata: storage.nbytes() for storage in storages}.values())
    reports = []
    for _ in range(3):
        reports.append(job.sleep().report)
        job.wake()
        training.step()
    training.expect_same_as(control)
    assert reports[0].trusted == 0 and reports[0].copied >= bytes_of_base
    for later in reports[1:]:
        assert later.trusted >= bytes_of_base, "copied out once, and never looked at again"
        assert later.live - later.trusted - later.copied - later.unchanged - later.zero == 0
        assert later.copied <= reports[0].copied - bytes_of_base


def test_a_frozen_base_in_a_shard_of_its_own_is_copied_out_once(two_ranks):
    two_ranks.run(frozen_base_of_its_own)


def frozen_without_being_told():
    """Nobody promises anything: what did not change is found by looking, and is not copied again."""
    training = Training(with_lora, trainable, with_ema=False).step()
    job = attached(training)
    first = job.sleep().report
    job.wake()
    second = job.sleep().report
    job.wake()
    assert first.copied + first.zero == first.live and second.copied == 0
    assert second.unchanged + second.zero == second.live


def test_what_did_not_change_is_not_copied_again(two_ranks):
    two_ranks.run(frozen_without_being_told)


def average(model, into):
    with torch.no_grad():
        for mine, its in zip(into.parameters(), model.parameters()):
            mine.lerp_(its.detach(), 0.1)


def ema_is_a_model():
    """An EMA that is a sharded model of its own, evaluated between steps, its gathered parameters left behind."""
    control, controls_ema = Training(sharded, adamw, with_ema=False), sharded()
    training, ema = Training(sharded, adamw, with_ema=False), sharded()
    ema.load_state_dict(controls_ema.state_dict())
    names = dict(params="followed", optim="followed-optim", ema_shard="followed-ema")
    job = sw.attach(training.model, training.optimizer, ema=ema, **names)
    for _ in range(3):
        for each, its in ((training, ema), (control, controls_ema)):
            each.step()
            average(each.model, its)
        with torch.no_grad():
            ema(training.data())
        job.sleep()
        assert not any(param._unsharded_param.untyped_storage().nbytes() for param in fsdp_params(ema))
        job.wake()
    training.expect_same_as(control)
    for mine, its in zip(ema.parameters(), controls_ema.parameters()):
        assert same_bytes(local(mine.detach()), local(its.detach()))


def test_an_ema_that_is_a_sharded_model_sleeps_with_its_job(two_ranks):
    two_ranks.run(ema_is_a_model)


def two_jobs():
    """An actor and a critic take turns: one trains while the other sleeps."""
    controls = [Training(sharded, adamw).step(4) for _ in range(2)]
    trainings = [Training(sharded, adamw) for _ in range(2)]
    jobs = [attached(training) for training in trainings]
    jobs[1].sleep()
    for turn in range(4):
        mine, other = turn % 2, (turn + 1) % 2
        trainings[mine].step(2)
        assert [job.is_awake for job in jobs] == [mine == 0, mine == 1]
        jobs[mine].sleep()
        jobs[other].wake()
    jobs[1].wake()
    for training, control in zip(trainings, controls):
        training.expect_same_as(control)


def test_two_jobs_take_turns_in_one_process(two_ranks):
    two_ranks.run(two_jobs)


def compiles_once():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    model = Words(depth=3)
    for block in model.blocks:
        block.compile(backend=counter)
    training = Training(lambda: sharded(model), adamw).step(2)
    job = attached(training)
    training.step(2)
    return compiled_while_it_slept(training, job, counter)


def test_compiled_blocks_run_after_a_wake_without_compiling_again(two_ranks):
    for before, after in two_ranks.run(compiles_once):
        assert before == after
