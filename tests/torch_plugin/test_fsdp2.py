# SPDX-License-Identifier: Apache-2.0
"""FSDP2 on two ranks: a sleep between steps changes nothing that the training can see, and no address.

docs/design/pytorch-guarantees.md sets these beside what the change that Stillwake grew from had guaranteed."""
import itertools

import places
import stillwake as sw
import torch
from pair_of_ranks import mapped, on_device
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from training import WIDTH, Training, Words, local

_numbers = itertools.count()


def sharded(model=None, **options):
    """A model over the two ranks, a group of parameters for each block and one for the rest."""
    model = Words() if model is None else model
    for block in getattr(model, "blocks", ()):
        fully_shard(block, **options)
    return fully_shard(model, **options)


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=0.01, **options)


def attached(training, **options):
    number = next(_numbers)
    names = {key: f"{name}-{number}" for key, name in (("params", "params"), ("optim", "optim"), ("ema_shard", "ema"))}
    return sw.attach(training.model, training.optimizer, ema=training.ema or None, **{**names, **options})


def fsdp_params(model):
    """FSDP2's own record of every parameter."""
    for module in model.modules():
        if hasattr(module, "_get_fsdp_state"):
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
            yield from (param for group in groups for param in group.fsdp_params)


def layout_of(tensor):
    inner = local(tensor.detach()) if not isinstance(tensor, DTensor) else tensor._local_tensor
    spec = (tensor.placements, tensor.device_mesh, tensor.shape, tensor.stride()) if isinstance(tensor, DTensor) else ()
    return (type(tensor), inner.dtype, inner.shape, inner.stride(), inner.storage_offset(),
            inner.untyped_storage().nbytes(), tensor.requires_grad, inner.device, *spec)


def who_is_who(training):
    """The identity of everything that a training holds on to."""
    keep = {}
    for name, parameter in training.model.named_parameters(remove_duplicate=False):
        keep[name] = (id(parameter), id(parameter._local_tensor), parameter._local_tensor.untyped_storage()._cdata)
    for name, buffer in training.model.named_buffers(remove_duplicate=False):
        keep[name] = (id(buffer), buffer.untyped_storage()._cdata)
    keep["keys"] = [id(key) for key in training.optimizer.state]
    keep["state"] = [[(key, id(value)) for key, value in state.items()] for state in training.optimizer.state.values()]
    keep["groups"] = [[id(parameter) for parameter in group["params"]] for group in training.optimizer.param_groups]
    keep["ema"] = [id(tensor) for tensor in training.ema.values()]
    keep["sharded"] = [(id(param), id(param.sharded_param)) for param in fsdp_params(training.model)]
    return keep


def layouts(training):
    found = {name: layout_of(tensor) for name, tensor in training.named()}
    for at, param in enumerate(fsdp_params(training.model)):
        flat = param._sharded_param_data
        storage, of_parameter = flat.untyped_storage(), param.sharded_param._local_tensor.untyped_storage()
        found[f"flat {at}"] = (flat.dtype, flat.shape, flat.stride(), flat.storage_offset(), storage._cdata,
                               storage.nbytes(), of_parameter._cdata)
    return found


def is_on_device(tensor):
    """On a GPU an optimizer's step counters stay on the CPU, outside of every shard."""
    return local(tensor.detach()).device.type == places.DEVICE.type


def addresses(training):
    """By our own account, which answers asleep, too."""
    found = {name: sw.address(tensor) for name, tensor in training.named() if is_on_device(tensor)}
    for at, param in enumerate(fsdp_params(training.model)):
        found[f"flat {at}"] = sw.address(param._sharded_param_data)
    return found


def data_pointers(training):
    """By PyTorch's."""
    found = {name: local(tensor.detach()).data_ptr() for name, tensor in training.named() if is_on_device(tensor)}
    for at, param in enumerate(fsdp_params(training.model)):
        found[f"flat {at}"] = param._sharded_param_data.data_ptr()
    return found


def nothing_moves_in_five_cycles():
    training = Training(sharded, adamw).step(2)
    identity, layout = who_is_who(training), layouts(training)
    job = attached(training)
    assert layouts(training) == layout and who_is_who(training) == identity, "adopt kept them"
    pointers = data_pointers(training)
    assert addresses(training) == pointers
    assert on_device(pointers.values()) == [pointer for pointer in pointers.values() if pointer != 0]
    assert sw.audit(training.model, training.optimizer, training.ema) == []
    for _ in range(5):
        content = training.content()
        report = job.sleep()
        assert report.report.shards_moved == 3 and not job.is_awake
        assert who_is_who(training) == identity and layouts(training) == layout, "the same while asleep"
        assert addresses(training) == pointers
        assert on_device(pointers.values()) == [], "the memory is gone"
        job.wake()
        assert job.is_awake and data_pointers(training) == pointers
        assert who_is_who(training) == identity and layouts(training) == layout
        for name, tensor in training.content().items():
            assert tensor.equal(content[name]), name
        training.step()
        assert data_pointers(training) == pointers, "nor does a step move anything"
    return len(pointers)


def test_identity_layout_and_every_address_hold_asleep_and_awake_in_five_cycles(two_ranks):
    ours, theirs = two_ranks.run(nothing_moves_in_five_cycles)
    assert ours == theirs > 60


def trains_like_the_control():
    control = Training(sharded, adamw).step(12)
    training = Training(sharded, adamw)
    job = attached(training)
    for steps in (0, 1, 2, 0, 3, 1, 2, 3):
        training.step(steps)
        job.sleep()
        job.wake()
    training.expect_same_as(control)
    return training.losses


def test_losses_parameters_state_and_ema_equal_a_control_run_bit_for_bit(two_ranks):
    ours, theirs = two_ranks.run(trains_like_the_control)
    assert len(ours) == 12 and ours != theirs, "each rank has its own data"


def whole_padded_storages_sleep():
    training = Training(sharded, adamw).step()
    job = attached(training)
    rank = torch.distributed.get_rank()
    embed, gain = training.model.embed.weight, training.model.gain
    assert embed.to_local().shape[0] == (19, 18)[rank] and gain.to_local().shape[0] == (1, 0)[rank]
    storages = [parameter._local_tensor.untyped_storage() for parameter in (embed, gain)]
    assert [storage.nbytes() for storage in storages] == [19 * WIDTH * 4, WIDTH * 4], "padded to the same on both ranks"
    flat = {id(param.sharded_param): param._sharded_param_data for param in fsdp_params(training.model)}
    for parameter in (embed, gain):
        flat[id(parameter)].zero_()
        flat[id(parameter)][-WIDTH:] = torch.arange(1.0, WIDTH + 1)  # the padding on rank 1, the last row on rank 0
    job.sleep()
    job.wake()
    for parameter in (embed, gain):
        assert flat[id(parameter)][-WIDTH:].equal(torch.arange(1.0, WIDTH + 1))
        assert sw.shard_of(flat[id(parameter)]) is job.shards[0], "a rank of no rows owns its padding"
    assert gain._local_tensor.data_ptr() == (sw.address(flat[id(gain)]), 0)[rank]
    return sw.address(gain)


def test_padding_and_ranks_without_rows_sleep_whole(two_ranks):
    ours, theirs = two_ranks.run(whole_padded_storages_sleep)
    assert ours != 0 and theirs == 0


def ties_hold():
    training = Training(sharded, adamw).step()
    job = attached(training)
    model = training.model
    for _ in range(2):
        job.sleep()
        job.wake()
        assert model.head.weight is model.embed.weight
        assert model.tied is model.table and model.turned.data_ptr() == model.table.data_ptr()
        assert model.turned.stride() == (1, WIDTH)
        model.table[3, 4] += 1
        assert model.turned[4, 3] == model.table[3, 4]
        training.step()


def test_tied_weights_and_aliased_buffers_stay_tied(two_ranks):
    two_ranks.run(ties_hold)


def gradients_go():
    training = Training(sharded, adamw).step()
    job = attached(training)
    training.loss().backward()
    held = sum(parameter.grad is not None for parameter in training.model.parameters())
    report = job.sleep()
    assert report.gradients_dropped == held > 0
    assert all(parameter.grad is None for parameter in training.model.parameters())
    assert job.sleep().gradients_dropped == 0
    job.wake()
    assert all(parameter.grad is None for parameter in training.model.parameters())


def test_gradients_are_none_while_asleep_and_after(two_ranks):
    two_ranks.run(gradients_go)


def accumulated_gradients_go(reduce_dtype):
    """Gradients that FSDP2 keeps for itself between backwards that do not reduce."""
    policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)

    def held(training):
        # Newer versions of PyTorch answer the one for the other.
        return len({id(gradient) for param in fsdp_params(training.model)
                    for gradient in (param._unsharded_param.grad, param.unsharded_accumulated_grad)
                    if gradient is not None})

    control = Training(lambda: sharded(mp_policy=policy), adamw).step(3)
    training = Training(lambda: sharded(mp_policy=policy), adamw).step()
    job = attached(training)
    training.optimizer.zero_grad()
    training.model.set_requires_gradient_sync(False)
    training.loss().backward()
    training.model.set_requires_gradient_sync(True)
    before = held(training)
    assert before > 0
    dropped = job.sleep().gradients_dropped
    assert (dropped, held(training)) == (before, 0), (dropped, before, held(training))
    job.wake()
    training.step(2)
    training.model.seen.copy_(control.model.seen)
    training.expect_same_as(control)


def test_gradients_that_were_accumulated_without_a_reduction_go_too(two_ranks):
    two_ranks.run(accumulated_gradients_go, None)
    two_ranks.run(accumulated_gradients_go, torch.float64)


def replaced_storages(how):
    """`_apply` is what `model.to()`, `half()` and `to_empty()` do."""
    control = Training(sharded, adamw).step(3)
    training = Training(sharded, adamw).step()
    job = attached(training)
    if how == "_apply":
        training.model._apply(lambda tensor: tensor.clone())
    else:
        for parameter in training.model.parameters():
            parameter.data = parameter.data.clone()
    training.step()
    job.sleep()
    assert on_device(addresses(training).values()) == [], "everything was found"
    job.wake()
    assert sw.audit(training.model, training.optimizer) == []
    training.step()
    training.expect_same_as(control)


def test_storages_that_were_replaced_are_found_before_a_sleep(two_ranks):
    for how in ("_apply", "data"):
        two_ranks.run(replaced_storages, how)


def starts_on_meta():
    def materialised():
        torch.manual_seed(3)
        values = {name: tensor.clone() for name, tensor in Words().state_dict().items()}
        with torch.device("meta"):
            model = Words()
        model = sharded(model)
        model.to_empty(device="cpu")
        model.tied, model.turned = model.table, model.table.t()
        set_model_state_dict(model, values, options=StateDictOptions(full_state_dict=True))
        return model

    control = Training(materialised, adamw).step(3)
    training = Training(materialised, adamw)
    job = attached(training)
    for _ in range(3):
        job.sleep()
        job.wake()
        training.step()
    training.expect_same_as(control)


def test_a_model_that_was_made_on_the_meta_device(two_ranks):
    two_ranks.run(starts_on_meta)


def twice_is_once():
    training = Training(sharded, adamw).step()
    job = attached(training)
    assert job.wake().report.is_no_op
    content = training.content()
    assert not job.sleep().report.is_no_op
    assert job.sleep().report.is_no_op and not job.is_awake
    assert not job.wake().report.is_no_op
    assert job.wake().report.is_no_op and job.is_awake
    assert all(tensor.equal(content[name]) for name, tensor in training.content().items())


def test_sleeping_twice_and_waking_twice_are_no_ops_that_say_so(two_ranks):
    """FR-B2"""
    two_ranks.run(twice_is_once)


def sleeps_before_the_first_step(lazily_built):
    control = Training(sharded, adamw).step(4)
    training = Training(sharded, adamw)
    job = attached(training)
    if lazily_built:
        training.loss().backward()  # FSDP2's lazy initialisation has run, the optimizer is empty still
    assert not training.optimizer.state
    pointers = data_pointers(training)
    job.sleep()
    job.wake()
    assert data_pointers(training) == pointers
    training.optimizer.zero_grad()
    if lazily_built:
        training.model.seen.zero_()
    training.step()
    assert sw.audit(training.model, training.optimizer, training.ema) == [], "the first step's state was taken in"
    pointers = data_pointers(training)
    job.sleep()
    job.wake()
    training.step(3)
    assert data_pointers(training) == pointers
    training.expect_same_as(control)


def test_a_sleep_before_the_lazy_initialisation_and_with_an_empty_optimizer(two_ranks):
    """FR-G7"""
    two_ranks.run(sleeps_before_the_first_step, False)


def test_a_sleep_between_the_lazy_initialisation_and_the_first_step(two_ranks):
    """FR-G7"""
    two_ranks.run(sleeps_before_the_first_step, True)


def what_was_gathered_is_left_alone(reshard_after_forward):
    control = Training(lambda: sharded(reshard_after_forward=reshard_after_forward), adamw).step(2)
    training = Training(lambda: sharded(reshard_after_forward=reshard_after_forward), adamw).step()
    with torch.no_grad():
        training.loss()
    gathered = [name for name, parameter in training.model.named_parameters() if not isinstance(parameter, DTensor)]
    assert gathered, "a forward without backward leaves gathered parameters behind"
    job = attached(training)
    assert all(isinstance(parameter, DTensor) for parameter in training.model.parameters())
    training.step()
    with torch.no_grad():
        training.loss()
        unsharded = [param._unsharded_param for param in fsdp_params(training.model)]
    assert any(tensor.untyped_storage().nbytes() for tensor in unsharded)
    job.sleep()
    assert not any(tensor.untyped_storage().nbytes() for tensor in unsharded), "resharded, their memory is given back"
    assert all(sw.shard_of(tensor) is None for tensor in unsharded)
    job.wake()
    with torch.no_grad():
        training.loss()
    sw.sleep(*job.shards)  # without the job: nothing that was gathered is a stray, or is adopted
    sw.wake(*job.shards)
    training.model.seen.copy_(control.model.seen)
    training.expect_same_as(control)
    return len(gathered)


def test_what_a_forward_gathered_is_neither_adopted_nor_kept(two_ranks):
    some = two_ranks.run(what_was_gathered_is_left_alone, None)
    everything = two_ranks.run(what_was_gathered_is_left_alone, False)
    assert some < everything


def sleeps_in_pinned_memory():
    training = Training(sharded, adamw).step()
    job = attached(training)
    live = sum({local(tensor.detach()).untyped_storage()._cdata: local(tensor.detach()).untyped_storage().nbytes()
                for _, tensor in training.named()}.values())
    content = training.content()
    report = job.sleep().report
    assert report.live >= live
    pinned = [shard.stats().host_pinned for shard in job.shards]
    assert sum(pinned) == sum(sw.stats(*job.shards)[shard.name].host_pinned for shard in job.shards) >= live
    assert sw.driver().calls()["cuMemHostRegister"] > 0
    views = {name: local(sw.host_view(tensor).detach()) for name, tensor in training.named()}
    for name, view in views.items():
        assert view.equal(content[name]), name
    starts = [view.data_ptr() for view in views.values() if view.numel()]
    assert mapped(starts) == starts
    assert all(shard.stats().mapped == 0 for shard in job.shards)
    job.wake()


def test_everything_lies_in_pinned_host_memory_while_asleep(two_ranks):
    two_ranks.run(sleeps_in_pinned_memory)
