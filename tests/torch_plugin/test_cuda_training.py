# SPDX-License-Identifier: Apache-2.0
"""Trainings on a GPU that sleep between their steps equal control runs that never slept, bit for bit, at the same
addresses. The trainings are those of the emulation's tests; without a GPU this file runs on the emulation, too."""
import copy
import shutil
import tempfile

import places
import pytest
import stillwake as sw
import test_fsdp2
import test_fsdp2_asleep
import test_fsdp2_variants
import test_training
import torch
import torch.distributed.checkpoint as dcp
from places import DEVICE, MIB, needs_a_driver, needs_gpu
from torch.distributed.fsdp import CPUOffloadPolicy
from training import Training, Words, local, same_bytes

pytestmark = needs_a_driver
ON_GPU = DEVICE.type == "cuda"


@pytest.fixture(scope="module", autouse=True)
def deterministic():
    if ON_GPU:
        places.be_deterministic()
    yield
    torch.use_deterministic_algorithms(False)


OPTIMIZERS = {name: test_training.OPTIMIZERS[name] for name in (
    "AdamW, foreach", "AdamW, fused", "AdamW, tensor learning rate", "LBFGS", "SGD", "SGD with momentum, fused")}
if ON_GPU:  # a capturable optimizer steps CUDA tensors only
    OPTIMIZERS |= {
        "AdamW, capturable": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True),
        "AdamW, capturable, fused": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True,
                                                                    fused=True),
        "AdamW, capturable, tensor learning rate": lambda model: torch.optim.AdamW(
            model.parameters(), lr=torch.tensor(0.01, device=DEVICE), capturable=True),
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_whatever_the_optimizer(name):
    test_training.trains_the_same(Words, OPTIMIZERS[name])


@pytest.mark.parametrize("name", ["bfloat16", "activation checkpointing", "quantized wrapper subclass", "averaged"])
def test_whatever_the_model(name):
    test_training.trains_the_same(test_training.MODELS[name],
                                  lambda model: torch.optim.AdamW(test_training.parameters(model), lr=0.01),
                                  with_ema=name != "quantized wrapper subclass")


@needs_gpu
def test_a_capturable_optimizers_step_is_a_graph_that_goes_on_after_the_wake(make_shard):
    """Forward, backward and step in one graph: its parameters, state and step counters sleep between the replays."""
    def run(sleeps):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True, fused=True)
        inputs = torch.randn(8, 64, device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        shards = (make_shard("params"), make_shard("optim")) if sleeps else ()
        if sleeps:
            sw.adopt(model, shards[0])
            sw.adopt(optimizer, shards[1])
            assert sw.audit(model, optimizer) == []
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        losses = []
        for _ in range(5):
            graph.replay()
            losses.append(loss.item())
            if sleeps:
                sw.sleep(*shards)
                with pytest.raises(RuntimeError, match="asleep"):
                    model[0].weight.sum()
                sw.wake(*shards)
        return losses, [parameter.detach().clone() for parameter in model.parameters()]

    (losses, values), (its_losses, its_values) = run(True), run(False)
    assert losses == its_losses and all(map(torch.equal, values, its_values))


ONE_RANK = [test_fsdp2.nothing_moves_in_five_cycles, test_fsdp2.trains_like_the_control, test_fsdp2.ties_hold,
            test_fsdp2.gradients_go, test_fsdp2.twice_is_once, test_fsdp2_asleep.whole_state_dict,
            test_fsdp2_asleep.swaps_while_asleep, test_fsdp2_asleep.checkpoints_while_asleep,
            test_fsdp2_asleep.copied_bucket_by_bucket]


@pytest.mark.parametrize("what", ONE_RANK, ids=lambda what: what.__name__)
def test_fsdp2_with_one_rank(what, one_rank):
    one_rank.run(what)


@pytest.mark.parametrize("name", ["plain", "mixed precision", "no reshard after forward", "CPU offload", "DDP"])
def test_fsdp2_and_ddp_with_one_rank(name, one_rank):
    model = next(key for key in test_fsdp2_variants.MODELS if key.startswith(name))
    one_rank.run(test_fsdp2_variants.by_model, model)


@needs_gpu
def test_parameters_that_fsdp2_keeps_on_the_cpu_stay_there(one_rank, make_shard):
    """CPUOffloadPolicy beside a CUDA shard."""
    training = Training(lambda: test_fsdp2.sharded(offload_policy=CPUOffloadPolicy()), test_fsdp2.adamw, with_ema=False)
    with pytest.warns(UserWarning, match="are on the CPU and hold no device memory"):
        job = sw.attach(training.model, training.optimizer, params=make_shard(), optim=make_shard())
    training.step(2)
    job.sleep()
    assert {local(parameter.detach()).device.type for parameter in training.model.parameters()} == {"cpu"}
    assert all(local(parameter.detach()).isfinite().all() for parameter in training.model.parameters())
    job.wake()
    training.step()


def test_a_checkpoint_without_a_process_group_is_saved_and_loaded_while_asleep(make_shard):
    """host_view, state_dict, torch.save and torch.distributed.checkpoint, all on the pinned bytes."""
    training = Training(Words, lambda model: torch.optim.AdamW(model.parameters(), lr=0.01)).step(2)
    wanted = {name: tensor.cpu().clone() for name, tensor in training.model.state_dict().items()}
    job = test_training.attached(training)
    job.sleep()
    state = sw.host_view(training.model.state_dict())
    assert {tensor.device.type for tensor in state.values()} == {"cpu"}
    assert all(same_bytes(state[name], tensor) for name, tensor in wanted.items())
    if ON_GPU:
        assert all(tensor.is_pinned() for tensor in state.values())
        copies = {name: tensor.cuda(non_blocking=True) for name, tensor in state.items()}
        assert all(same_bytes(copies[name].cpu(), tensor) for name, tensor in wanted.items())
    folder = tempfile.mkdtemp()
    try:
        dcp.save({"model": state}, checkpoint_id=f"{folder}/dcp", no_dist=True)
        torch.save(state, f"{folder}/plain.pt")
        loaded = {"model": {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}}
        dcp.load(loaded, checkpoint_id=f"{folder}/dcp", no_dist=True)
        plain = torch.load(f"{folder}/plain.pt")
        into = sw.host_view(training.ema, write=True)
        for name, average in into.items():
            average.copy_(wanted[name])
    finally:
        shutil.rmtree(folder)
    assert all(same_bytes(loaded["model"][name], tensor) and same_bytes(plain[name], tensor)
               for name, tensor in wanted.items())
    states = copy.deepcopy(sw.host_view(training.optimizer))
    assert not job.wake().report.verified, "the averages were written on the host"
    assert all(same_bytes(training.ema[name].cpu(), wanted[name]) for name in training.ema)
    training.optimizer.load_state_dict(states)
    training.step()
    assert sw.audit(training.model, training.optimizer, training.ema) == []


def test_half_of_a_state_is_freed_and_the_rest_moves_alone(make_shard):
    """FR-D4, E4: what is restored is what was saved."""
    shard = make_shard()
    tensors = [torch.full((4 * MIB,), value, dtype=torch.uint8, device=DEVICE) for value in range(8)]
    sw.adopt(tensors, shard)
    del tensors[::2]
    slept = sw.sleep(shard)
    woken = sw.wake(shard)
    assert slept.live == 16 * MIB and woken.copied + woken.zero == slept.copied + slept.unchanged + slept.zero
    assert woken.verified and all(tensor.eq(2 * at + 1).all() for at, tensor in enumerate(tensors))


@places.needs_two_gpus
@pytest.mark.parametrize("what", ONE_RANK, ids=lambda what: what.__name__)
def test_fsdp2_with_two_ranks(what, two_ranks):
    two_ranks.run(what)


@places.needs_two_gpus
@pytest.mark.parametrize("name", ["plain", "mixed precision", "DDP"])
def test_fsdp2_and_ddp_with_two_ranks(name, two_ranks):
    model = next(key for key in test_fsdp2_variants.MODELS if key.startswith(name))
    two_ranks.run(test_fsdp2_variants.by_model, model)
