# SPDX-License-Identifier: Apache-2.0
"""What an FSDP2 job does while it sleeps, all on the host copy: state dicts, EMA, checkpoints. Compared with a control
run that did the same awake."""
import shutil
import tempfile

import stillwake as sw
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pair_of_ranks import mapped
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor
from test_fsdp2 import adamw, attached, sharded
from training import Training, local, same_bytes, tensors_in


def shared_folder():
    """A new folder that both ranks know."""
    told = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(told, src=0)
    return told[0]


def remove(folder):
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)


def detached(model):
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def blend(average, current):
    average.lerp_(current, 0.25)


def exchange(one, other):
    """Swaps two tensors' content."""
    kept = local(one).clone()
    local(one).copy_(local(other))
    local(other).copy_(kept)


def whole_state_dict():
    control = Training(sharded, adamw).step(2)
    wanted = {name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()
              for name, tensor in control.model.state_dict().items()}
    training = Training(sharded, adamw).step(2)
    job = attached(training)
    job.sleep()
    pinned = [shard.stats().host_pinned for shard in job.shards]
    for view in (sw.host_view(training.model), sw.host_view(training.model.state_dict()),
                 sw.host_view(get_model_state_dict(training.model))):
        assert list(view) == list(wanted)
        for name, tensor in view.items():
            assert mapped([local(tensor).data_ptr()]) if local(tensor).numel() else True
            real = training.model.state_dict(keep_vars=True)[name]
            assert (tensor.shape, tensor.stride(), tensor.dtype) == (real.shape, real.stride(), real.dtype)
            if isinstance(real, DTensor):
                assert (tensor.placements, tensor.device_mesh) == (real.placements, real.device_mesh)
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            assert same_bytes(whole, wanted[name]), name
    states = sw.host_view(training.optimizer)
    assert states["param_groups"] == training.optimizer.state_dict()["param_groups"]
    expected = dict(tensors_in(control.optimizer.state_dict()["state"]))
    found = dict(tensors_in(states["state"]))
    assert list(found) == list(expected)
    for name, tensor in found.items():
        assert same_bytes(local(tensor), local(expected[name])), name
    assert [shard.stats().host_pinned for shard in job.shards] == pinned, "nothing was copied"
    job.wake()
    training.step()
    training.expect_same_as(control.step())


def test_state_dicts_of_model_and_optimizer_are_whole_while_asleep(two_ranks):
    two_ranks.run(whole_state_dict)


def copied_bucket_by_bucket():
    """The hand-over of weights: a second model is filled from the sleeping trainer, piece by piece."""
    training = Training(sharded, adamw).step(2)
    serving = Training(sharded, adamw, with_ema=False)
    job = attached(training)
    job.sleep()
    set_model_state_dict(serving.model, sw.host_view(training.model.state_dict()))
    job.wake()
    for name, parameter in training.model.named_parameters():
        assert same_bytes(local(parameter.detach()), local(dict(serving.model.named_parameters())[name].detach()))


def test_a_serving_model_is_filled_from_a_sleeping_trainer(two_ranks):
    two_ranks.run(copied_bucket_by_bucket)


def averages_while_asleep(how):
    control = Training(sharded, adamw).step(2)
    training = Training(sharded, adamw).step(2)
    job = attached(training)
    for _ in range(2):
        for name, parameter in control.model.named_parameters():
            with torch.no_grad():
                blend(control.ema[name], parameter.detach())
        job.sleep()
        current = sw.host_view(detached(training.model))
        average = sw.host_view(training.ema, write=True)
        with torch.no_grad():
            if how == "foreach":
                torch._foreach_lerp_([local(average[name]) for name in average],
                                     [local(current[name]) for name in average], 0.25)
            else:
                for name in average:
                    blend(average[name], current[name])
        report = job.wake().report
        assert not report.verified, "what the host wrote is restored, and never called verified"
        training.expect_same_as(control)
        training.step()
        control.step()
    training.expect_same_as(control)


def test_ema_is_updated_while_asleep(two_ranks):
    two_ranks.run(averages_while_asleep, "one by one")


def test_ema_is_updated_by_a_foreach_operator_while_asleep(two_ranks):
    two_ranks.run(averages_while_asleep, "foreach")


def swaps_while_asleep():
    control = Training(sharded, adamw).step(3)
    training = Training(sharded, adamw).step(3)
    job = attached(training)
    for name, parameter in control.model.named_parameters():
        exchange(parameter.detach(), control.ema[name])
    job.sleep()
    current = sw.host_view(detached(training.model), write=True)
    average = sw.host_view(training.ema, write=True)
    for name in average:
        exchange(current[name], average[name])
    job.wake()
    with torch.no_grad():
        assert training.loss().equal(control.loss()), "evaluated with the averages"
    for each in (training, control):
        each.model.reshard()
    job.sleep()
    current = sw.host_view(detached(training.model), write=True)
    average = sw.host_view(training.ema, write=True)
    for name in average:
        exchange(average[name], current[name])
    job.wake()
    for name, parameter in control.model.named_parameters():
        exchange(parameter.detach(), control.ema[name])
    training.step(2)
    training.expect_same_as(control.step(2))


def test_ema_is_swapped_in_and_out_while_asleep(two_ranks):
    two_ranks.run(swaps_while_asleep)


def checkpoint_of(model, optimizer, ema):
    return {"model": model, "optimizer": optimizer, "ema": ema}


def checkpoints_while_asleep():
    """Saved asleep, then trained on, then loaded asleep: the training is where it was."""
    control = Training(sharded, adamw).step(2)
    training = Training(sharded, adamw).step(2)
    job = attached(training)
    folder = shared_folder()
    content = training.content()
    job.sleep()
    dcp.save(checkpoint_of(sw.host_view(training.model), sw.host_view(training.optimizer), sw.host_view(training.ema)),
             checkpoint_id=folder)
    job.wake()
    training.step(2)
    assert any(not same_bytes(tensor, content[name]) for name, tensor in training.content().items())
    job.sleep()
    dcp.load(checkpoint_of(sw.host_view(training.model, write=True), sw.host_view(training.optimizer, write=True),
                           sw.host_view(training.ema, write=True)), checkpoint_id=folder)
    job.wake()
    for name, tensor in training.content().items():
        assert same_bytes(tensor, content[name]), name
    training.steps, training.losses = control.steps, list(control.losses)
    # A run that never heard of Stillwake reads the same files.
    reader = Training(sharded, adamw).step()
    model, optimizer = reader.model.state_dict(), reader.optimizer.state_dict()
    dcp.load(checkpoint_of(model, optimizer, reader.ema), checkpoint_id=folder)
    reader.steps, reader.losses = control.steps, list(control.losses)
    training.step(2)
    control.step(2)
    training.expect_same_as(control)
    reader.step(2)
    reader.expect_same_as(control)
    remove(folder)


def test_a_checkpoint_is_saved_and_loaded_while_asleep(two_ranks):
    two_ranks.run(checkpoints_while_asleep)


def views_end():
    training = Training(sharded, adamw).step()
    job = attached(training)
    job.sleep()
    views = sw.host_view(training.model)
    job.wake()
    refused = 0
    for view in views.values():
        try:
            local(view).sum()
        except RuntimeError as error:
            refused += "host view" in str(error)
    full = [view for view in views.values() if local(view).numel()]
    assert refused >= len(full)
    try:
        sw.host_view(training.model)
        raise AssertionError("a job that is awake has no host view")
    except sw.Busy:
        pass


def test_views_of_a_job_raise_once_it_is_awake(two_ranks):
    two_ranks.run(views_end)
