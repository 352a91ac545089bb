# SPDX-License-Identifier: Apache-2.0
"""Work in flight: streams, events, CUDA graphs and compiled models beside a sleep (FR-A1 to A3, G6).

Suite gpu; the process ends with 77 where there is no GPU (conftest.py)."""
import time

import pytest
import stillwake as sw
import torch
from places import MIB, busy, needs_gpu
from torch import nn

pytestmark = needs_gpu


def test_work_in_flight_on_a_side_stream_is_kept(make_shard):
    """FR-A1: a kernel of half a second is writing when sleep is called. FR-E1: side streams write, too."""
    shard = make_shard()
    with shard.pool():
        tensor = torch.zeros(16 * MIB, device="cuda")
    tensor.add_(0)  # a kernel's first launch loads it, which waits for the device
    side = torch.cuda.Stream()
    for cycle, seconds in enumerate((0.5, 0.05, 0.05, 0.05), 1):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            busy(seconds)
            tensor.add_(1)
        assert not side.query()
        sw.sleep(shard)
        sw.wake(shard)
        assert tensor.eq(cycle).all()


def test_a_sleep_that_has_no_time_to_wait_leaves_everything_awake(make_shard):
    shard = make_shard()
    with shard.pool():
        tensor = torch.zeros(1000, device="cuda")
    side = torch.cuda.Stream()
    tensor.add_(0)
    with torch.cuda.stream(side):
        busy(0.5)
        tensor.add_(1)
    with pytest.raises(sw.TimedOut):
        sw.sleep(shard, timeout=0.05)
    assert shard.state == "awake"
    side.synchronize()
    assert tensor.eq(1).all()


@pytest.mark.parametrize("policy", ["preserve", "discard"])
def test_replays_queued_on_three_streams_are_waited_for(policy, make_shard):
    """FR-A2: a hundred times; also where nothing is copied."""
    shard = make_shard(policy=policy)
    with shard.pool():
        counter, scratch = torch.zeros(1000, device="cuda"), torch.zeros(4 * MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scratch.add_(1)
        counter.add_(1)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for cycle in range(100):
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                graph.replay()
        sw.sleep(shard)
        sw.wake(shard)
        wanted = 3 * (cycle + 1) if policy == "preserve" else 0
        assert counter.eq(wanted).all() and scratch.eq(wanted).all(), cycle


def test_freeing_does_not_wait_for_an_unrelated_stream(make_shard):
    """FR-A3: two hundred times allocate, launch, free at once beside a kernel of two seconds; no wrong byte."""
    shard = make_shard()
    tensors = [torch.empty(0, device="cuda") for _ in range(200)]
    sw.adopt(tensors, shard)
    total = torch.zeros((), device="cuda")

    def use(value, tensor):
        tensor.resize_(50_000).fill_(value)
        total.add_(tensor.sum() / 50_000)
        tensor.untyped_storage().resize_(0)  # frees at once, while the kernels are queued

    warm = torch.empty(0, device="cuda")
    sw.adopt(warm, shard)
    use(0, warm)  # a kernel's first launch loads it, which waits for the device
    torch.cuda.synchronize()
    unrelated = torch.cuda.Stream()
    with torch.cuda.stream(unrelated):
        busy(2.0)
    began = time.monotonic()
    for value, tensor in enumerate(tensors):
        use(value, tensor)
    took, running = time.monotonic() - began, not unrelated.query()
    assert running and took < 1.5, took
    assert abs(total.item() - sum(range(200))) < 1
    unrelated.synchronize()


def test_streams_wait_by_themselves(make_shard):
    shard = make_shard()
    with shard.pool():
        tensor = torch.arange(64 * MIB, dtype=torch.int32, device="cuda")
    wanted = tensor.sum().item()
    sw.sleep(shard)
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    ticket = sw.wake(shard, streams=[side])
    with torch.cuda.stream(side):
        first = tensor.sum()
    ticket.wait(other.cuda_stream)
    with torch.cuda.stream(other):
        second = tensor.sum()
    assert ticket.result().verified
    side.synchronize()
    other.synchronize()
    assert first.item() == second.item() == wanted


def layers(width=1024):
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))


@pytest.mark.parametrize("in_shard", [False, True])
def test_a_graph_replays_after_the_wake_without_a_new_capture(in_shard, make_shard):
    """FR-G6, A2: also with a shard as the graph's pool; replays are queued on three streams when the sleep begins."""
    weights, graphs = make_shard(), make_shard()
    with weights.pool():
        model = layers().cuda().requires_grad_(False)
        inputs = torch.randn(64, 1024, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model(inputs)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    pool = graphs.mem_pool(for_graphs=True).id if in_shard else None
    with torch.cuda.graph(graph, pool=pool):
        outputs = model(inputs)
    assert sw.shard_of(outputs) is (graphs if in_shard else None)
    graph.replay()
    wanted, address = outputs.clone(), outputs.data_ptr()
    for cycle in range(10):
        for stream in [torch.cuda.Stream() for _ in range(3)]:
            with torch.cuda.stream(stream):
                graph.replay()
        slept = sw.sleep(weights, graphs)
        assert slept.shards_moved == 2 and graphs.stats().mapped == 0
        sw.wake(weights, graphs)
        assert outputs.equal(wanted) and outputs.data_ptr() == address
        outputs.zero_()
        inputs.mul_(2)
        graph.replay()
        torch.cuda.synchronize()
        assert not outputs.equal(wanted), "the graph reads what lies at the addresses now"
        inputs.div_(2)
        graph.replay()
        assert outputs.equal(wanted), cycle


def test_the_memory_of_a_graph_in_a_shard_comes_back_once_the_graph_is_gone(make_shard):
    shard = make_shard()
    inputs = torch.ones(MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=shard.mem_pool().id):  # not said to be for graphs: PyTorch's count tells it
        outputs = (inputs * 2 + 1) * 3
    graph.replay()
    whole = sw.sleep(shard).live
    sw.wake(shard)
    graph.replay()
    assert outputs.eq(9).all() and whole >= 2 * outputs.nbytes, "what the graph writes into is kept whole"
    del outputs
    graph.reset()
    shard.close()


def test_graphed_callables_train_across_sleeps(make_shard):
    def run(sleeps):
        torch.manual_seed(0)
        model = layers(256).cuda()
        job = sw.attach(model, params=make_shard("params")) if sleeps else None
        inputs = torch.randn(8, 256, device="cuda")
        graphed = torch.cuda.make_graphed_callables(model, (inputs.clone(),))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
        losses = []
        for _ in range(4):
            loss = graphed(inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
            del loss
            if job:
                job.sleep()
                job.wake()
        return losses

    assert run(True) == run(False)


def test_a_sleep_during_a_capture_is_busy_and_the_capture_is_whole(make_shard):
    shard = make_shard()
    with shard.pool():
        tensor = torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.add_(1)
        with pytest.raises(sw.Busy, match="capture"):
            sw.sleep(shard)
        tensor.add_(1)
    graph.replay()
    assert tensor.eq(2).all() and shard.state == "awake"


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_training_is_neither_compiled_nor_captured_again(mode, make_shard, monkeypatch):
    """The parameters keep their addresses, which is what graph trees look at before a replay. The memory of the graphs
    is PyTorch's own: it stays on the device, and the jobs' gradients with it until they are dropped."""
    from torch._dynamo.utils import counters
    from torch._inductor import cudagraph_trees

    recorded = []
    record = cudagraph_trees.CUDAGraphTreeManager.record_function
    monkeypatch.setattr(cudagraph_trees.CUDAGraphTreeManager, "record_function",
                        lambda self, *arguments: (recorded.append(1), record(self, *arguments))[1])

    def run(sleeps):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = layers(256).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        job = sw.attach(model, optimizer, params=make_shard("params"), optim=make_shard("optim")) if sleeps else None
        compiled = torch.compile(model, mode=mode)
        inputs, losses, counts = torch.randn(8, 256, device="cuda"), [], []
        for _ in range(8):
            torch.compiler.cudagraph_mark_step_begin()
            loss = compiled(inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
            del loss
            counts.append((counters["stats"]["unique_graphs"], len(recorded)))
            if job:
                job.sleep()
                job.wake()
        assert not counters["inductor"]["cudagraph_skips"]
        assert len(set(counts[4:])) == 1, counts
        return losses, [parameter.detach().clone() for parameter in model.parameters()]

    (losses, values), (its_losses, its_values) = run(True), run(False)
    assert losses == its_losses and all(map(torch.equal, values, its_values))
    assert bool(recorded) == (mode == "reduce-overhead")
