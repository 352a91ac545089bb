# SPDX-License-Identifier: Apache-2.0
"""FR-B4, FR-I1: every driver call that a sleep and a wake of a two-rank FSDP2 job make fails once, on one rank and
then on the other. The rank that failed says so by its own error, the other by naming it; a retry does what is missing;
and the training that went through all of it equals a control run bit for bit."""
import stillwake as sw
import torch.distributed as dist
from test_fsdp2 import adamw, addresses, attached, sharded
from training import Training, Words, same_bytes


# Calls that may fail without a word to the caller: they give back what is not used any more, and are made again later,
# or, to ask how much is free, only decide in which order a wake goes about it.
MAY_BE_SILENT = {"cuMemGetInfo", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuMemRelease", "cuMemUnmap",
                 "cuThreadExchangeStreamCaptureMode"}


def small():
    return sharded(Words(depth=0))


def fused(model):
    return adamw(model, fused=True)  # the other kinds make DTensor think anew in every step


def outcome_of(transition):
    try:
        transition()
    except sw.Error as error:
        return error
    return None


def failed_calls():
    return sw._cpu.driver_calls()[1]


def told_to_all(mine):
    told = [None, None]
    dist.all_gather_object(told, mine)
    return told


def in_every_place(victim, ready, transition, unharmed, check, gets_over=False):
    """Fails the nth call of the victim's transition for every n that there is; answers how many, and how many of these
    made it fail. `unharmed` looks at the rank that failed, `check` at both after the retry. `gets_over`: a lack of
    memory need not make it fail, since it begins anew by itself."""
    places, raised = 0, 0
    while True:
        ready()
        if dist.get_rank() == victim:
            failed_before = failed_calls()
            error = "CUDA_ERROR_OUT_OF_MEMORY" if places % 2 else "CUDA_ERROR_UNKNOWN"
            sw._cpu.inject_faults(f"*:{places + 1}={error}")
        failure = outcome_of(transition)
        injected = sw._cpu.injected_faults()
        sw._cpu.inject_faults("")
        if told_to_all(injected) == [0, 0]:
            assert failure is None, failure
            check()
            return places, raised
        places += 1
        failures = told_to_all(type(failure).__name__)
        if failure is not None:
            raised += 1
            if dist.get_rank() == victim:
                assert not isinstance(failure, sw.RankFailed), f"place {places}: {failure}"
                unharmed(failure)
            else:
                assert isinstance(failure, sw.RankFailed) and failure.ranks == (victim,), f"place {places}: {failure}"
                assert f"rank {victim}: {failures[victim]}" in str(failure)
            transition()
        else:
            assert failures == ["NoneType", "NoneType"], f"place {places}: both know or neither"
            if dist.get_rank() == victim:
                silent = {call for call, count in failed_calls().items() if count > failed_before.get(call, 0)}
                lacked_memory = gets_over and "OUT_OF_MEMORY" in error
                assert lacked_memory or silent <= MAY_BE_SILENT, f"place {places}: {silent} failed and nobody was told"
        check()


def sweep():
    sw._cpu.set_pinning_threads(1)  # one thread: the nth call is the same call each time
    training = Training(small, fused)
    job = attached(training)
    training.step()
    pointers = addresses(training)
    kept = {}

    def ready_to_sleep():
        if not job.is_awake:
            job.wake()
        sw.trim(*job.shards)  # it has to pin, too
        training.step()
        training.ema["gain"] = training.ema["gain"].clone()  # and a stray to take in
        kept.update(training.content())

    def slept(failure=None):
        assert [shard.state for shard in job.shards] == ["asleep"] * 3, failure
        assert sum(shard.stats().mapped for shard in job.shards) == 0
        view = sw.host_view(training.ema)
        for name, tensor in view.items():
            assert same_bytes(tensor.to_local(), kept[f"ema.{name}"])

    def awake_as_before(failure=None):
        assert [shard.state for shard in job.shards] == ["awake"] * 3, failure
        for name, tensor in training.content().items():
            assert same_bytes(tensor, kept[name]), name

    def ready_to_wake():
        if job.is_awake:
            training.step()
            kept.update(training.content())
            job.sleep()

    def asleep_or_awake(failure):
        """Awake, or about to be, where the call that failed was one that only asked how the copies went."""
        if not job.is_awake:
            return slept(failure)
        try:
            found = training.content()
        except RuntimeError as refused:
            assert "is asleep" in str(refused)  # it is still arriving: nobody reads half of it
        else:
            assert all(same_bytes(tensor, kept[name]) for name, tensor in found.items())

    def woken():
        assert job.is_awake
        awake_as_before()
        assert {name: address for name, address in addresses(training).items() if name != "ema.gain"} == {
            name: address for name, address in pointers.items() if name != "ema.gain"}

    done = {}
    for victim in range(2):
        done["sleep", victim] = in_every_place(victim, ready_to_sleep, job.sleep, awake_as_before, slept)
        done["wake", victim] = in_every_place(victim, ready_to_wake, job.wake, asleep_or_awake, woken, gets_over=True)
    training.step()
    control = Training(small, fused).step(training.steps)
    training.expect_same_as(control)
    assert sw.audit(training.model, training.optimizer, training.ema) == []
    return done, training.steps


def test_every_driver_call_of_a_jobs_sleep_and_wake_fails_once_on_each_rank(two_ranks):
    (done, steps), (others, _) = two_ranks.run(sweep, timeout=240)
    assert done == others
    for (what, victim), (places, raised) in done.items():
        print(f"{what}: failed at {places} places on rank {victim}, {raised} of them were told")
        assert places > raised >= {"sleep": 20, "wake": 10}[what], done  # a wake gets over a lack of memory
    assert steps > 40
