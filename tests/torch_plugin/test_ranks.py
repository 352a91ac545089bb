# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a job tell each other: who failed, who came late, what is no way to speak. Nothing hangs."""
import os
import time

import pytest
import stillwake as sw
import torch
import torch.distributed as dist
from pair_of_ranks import TIMEOUT
from test_fsdp2 import adamw, attached, sharded
from training import Training, same_bytes


def error_of(call):
    try:
        call()
    except Exception as error:
        return error
    return None


def one_rank_fails(victim, what):
    """A device that is full, or a host that gives no memory, on one rank alone."""
    training = Training(sharded, adamw).step()
    job = attached(training)
    content = training.content()
    transition, fault, kind = {"sleep": (job.sleep, "cuMemHostRegister:1+", sw.OutOfHostMemory),
                               "wake": (job.wake, "cuMemCreate:1+", sw.OutOfMemory)}[what]
    if what == "wake":
        job.sleep()
    if dist.get_rank() == victim:
        sw._cpu.inject_faults(fault)
    groups = len(dist.distributed_c10d._world.pg_map)
    began = time.monotonic()
    for _ in range(2):
        error = error_of(transition)
        if dist.get_rank() == victim:
            assert type(error) is kind, error
        else:
            assert type(error) is sw.RankFailed and error.ranks == (victim,), error
            assert f"rank {victim}: {kind.__name__}" in str(error) and f"{what} failed on 1 of 2 ranks" in str(error)
    took = time.monotonic() - began
    sw._cpu.inject_faults("")
    retried = transition()
    assert retried.report.is_no_op == (dist.get_rank() != victim), "the rank that had done it has nothing left to do"
    if what == "sleep":
        job.wake()
    assert len(dist.distributed_c10d._world.pg_map) == groups, "no process group came or went (FR-I3)"
    for name, tensor in training.content().items():
        assert same_bytes(tensor, content[name])
    training.step()
    return took


@pytest.mark.parametrize("what", ["sleep", "wake"])
@pytest.mark.parametrize("victim", [0, 1])
def test_one_rank_runs_out_and_all_raise_and_a_retry_works(two_ranks, what, victim):
    """FR-I1, FR-I3"""
    assert max(two_ranks.run(one_rank_fails, victim, what)) < TIMEOUT


def an_exception_between(error_type):
    """An exception that is none of ours, in the middle of one rank's sleep: the other is told, too."""
    training = Training(sharded, adamw).step()
    job = attached(training)
    reshard = type(training.model).reshard

    def broken(self):
        raise error_type("from a hook of the program")

    if dist.get_rank() == 0:
        type(training.model).reshard = broken
    try:
        job.sleep()
        error = None
    except BaseException as raised:  # KeyboardInterrupt among them
        error = raised
    type(training.model).reshard = reshard
    if dist.get_rank() == 0:
        assert type(error) is error_type and job.is_awake
    else:
        assert type(error) is sw.RankFailed and "from a hook of the program" in str(error)
    job.sleep()
    job.wake()
    training.step()


@pytest.mark.parametrize("error_type", [ValueError, KeyboardInterrupt])
def test_an_exception_of_the_programs_own_on_one_rank_is_told_to_the_other(two_ranks, error_type):
    two_ranks.run(an_exception_between, error_type)


def each_its_own_call():
    job = attached(Training(sharded, adamw).step())
    other = 1 - dist.get_rank()
    error = error_of((job.wake, job.sleep)[dist.get_rank()])
    assert type(error) is sw.RankFailed and error.ranks == (other,)
    assert f"rank {other} {('wake', 'sleep')[other]}" in str(error) and "same order" in str(error)
    if dist.get_rank() == 0:
        sw.sleep(*job.shards)
    job.wake()
    assert job.is_awake


def test_ranks_that_make_different_calls_are_told_so(two_ranks):
    two_ranks.run(each_its_own_call)


def arrives_late():
    training = Training(sharded, adamw).step()
    job = attached(training)
    done = []
    for transition in (job.sleep, job.wake):
        if dist.get_rank() == 1:
            time.sleep(1.5)
            begun = time.time()
        transition()
        told = [None, None]
        dist.all_gather_object(told, (time.time(), None if dist.get_rank() == 0 else begun))
        done.append(told[0][0] > told[1][1])
    return done


def test_nobody_goes_on_before_the_last_rank_has_given_its_memory_back(two_ranks):
    """FR-I2"""
    assert two_ranks.run(arrives_late) == [[True, True], [True, True]]


def ways_to_speak():
    training = Training(sharded, adamw, with_ema=False)
    names = dict(params="ways", optim="ways-optim")
    only_first = dist.new_group([0])
    without_cpu = dist.new_group(backend="cuda:gloo")
    with_cpu = dist.new_group(backend="cpu:gloo,cuda:gloo")
    found = {}
    for name, group in {"of one rank": only_first, "without a CPU backend": without_cpu, "no group": "gloo"}.items():
        error = error_of(lambda: sw.attach(training.model, training.optimizer, group=group, **names))
        found[name] = None if error is None else f"{type(error).__name__}: {error}"
    assert (sw.shard_of(training.model.embed.weight) is None) == (dist.get_rank() == 1), "a refusal adopts nothing"
    job = sw.attach(training.model, training.optimizer, group=with_cpu, **names)
    job.sleep()
    job.wake()
    dist.barrier()
    for group in (only_first, without_cpu, with_cpu):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    error = error_of(job.sleep)
    found["destroyed"] = f"{type(error).__name__}: {error}"
    return found


def test_a_group_must_be_able_to_speak_for_the_cpu_and_hold_this_rank(two_ranks):
    first, second = two_ranks.run(ways_to_speak)
    assert first["of one rank"] is None and "InvalidArgument" in second["of one rank"]
    assert "(1) belongs to" in second["of one rank"]
    for told in (first, second):
        assert "InvalidArgument" in told["without a CPU backend"] and "cuda:gloo" in told["without a CPU backend"]
        assert "InvalidArgument" in told["no group"] and "'gloo'" in told["no group"]
        assert "InvalidArgument" in told["destroyed"] and "attach again" in told["destroyed"]


def attaches_where_one_has_no_room():
    training = Training(sharded, adamw, with_ema=False)
    small = sw.shard(f"small-{dist.get_rank()}", addresses=2 << 20 if dist.get_rank() else None)
    if dist.get_rank():
        with small.pool():
            training.filling = torch.empty((2 << 20) - 512, dtype=torch.uint8)
    return type(error_of(lambda: sw.attach(training.model, training.optimizer, params=small, optim="roomy"))).__name__


def test_an_attach_that_fails_on_one_rank_is_told_to_all(two_ranks):
    assert two_ranks.run(attaches_where_one_has_no_room) == ["RankFailed", "OutOfMemory"]


def dies_while_the_other_sleeps():
    training = Training(sharded, adamw).step()
    job = attached(training)
    if dist.get_rank() == 1:
        os._exit(7)
    began = time.monotonic()
    error = error_of(job.sleep)
    return type(error).__name__, str(error), time.monotonic() - began, [shard.state for shard in job.shards]


def test_a_rank_that_dies_is_a_rank_failure_on_the_others(two_ranks):
    with pytest.raises(AssertionError, match="rank 1 ended with status 7") as raised:
        two_ranks.run(dies_while_the_other_sleeps)
    kind, text, took, states = raised.value.answers[0][1]
    assert kind == "RankFailed" and "gave no verdict" in text and took < TIMEOUT + 5
    assert states == ["asleep"] * 3


@pytest.mark.parametrize("arguments, told", [
    (dict(model=[]), "no model"),
    (dict(model="model"), "model takes one Module or a list of them, not str"),
    (dict(model=[torch.nn.Linear(2, 2), None]), "not NoneType"),
    (dict(model=torch.nn.Linear(2, 2), optimizer=torch.nn.Linear(2, 2)), "optimizer takes one Optimizer"),
    (dict(model=torch.nn.Linear(2, 2), group=object()), "torch.distributed is not initialised"),
    (dict(model=torch.nn.Linear(2, 2), params=""), "name of a shard"),
    (dict(model=torch.nn.Linear(2, 2), params=7), "name of a shard"),
    (dict(model=torch.nn.Linear(2, 2), strays="keep"), "'error', 'adopt' and 'report'"),
    (dict(model=torch.nn.Linear(2, 2), ema=object()), "registered pytree"),
])
def test_wrong_arguments_of_attach_are_named_and_nothing_is_adopted(arguments, told):
    with pytest.raises(sw.InvalidArgument, match=told):
        sw.attach(**arguments)
    models = [part for part in torch.nn.ModuleList([arguments["model"]]) if part] if isinstance(
        arguments["model"], torch.nn.Module) else []
    assert all(sw.shard_of(parameter) is None for model in models for parameter in model.parameters())


def test_a_job_of_one_rank_needs_no_group():
    model = torch.nn.Linear(4, 4)
    job = sw.attach(model, params="alone")
    assert str(job.sleep()).startswith("sleep: 1 of 1 shards") and not job.is_awake
    job.wake()
    assert model(torch.ones(1, 4)).shape == (1, 4)
