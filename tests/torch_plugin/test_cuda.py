# SPDX-License-Identifier: Apache-2.0
"""What needs CUDA itself: pools over PyTorch's caching allocator, streams, graphs, the cache of a full device.

Suite gpu; the process ends with 77 where there is no GPU (conftest.py)."""
import subprocess
import sys

import pytest
import stillwake as sw
import torch
from torch import nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

MIB = 1 << 20
SPELLINGS = [{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
             {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"}]
IN_A_POOL = """
import torch, stillwake as sw
{setting}
shard = sw.shard("one")
with shard.pool():
    tensor = torch.full((64 << 20,), 7, dtype=torch.uint8, device="cuda")
address = tensor.data_ptr()
free = torch.cuda.mem_get_info()[0]
sw.sleep(shard)
gained = torch.cuda.mem_get_info()[0] - free
sw.wake(shard)
print(sw.shard_of(tensor) is shard, gained >= 64 << 20, tensor.data_ptr() == address, bool(tensor.eq(7).all()))
"""


def free_bytes():
    return torch.cuda.mem_get_info()[0]


def test_a_pool_sleeps_and_gives_its_memory_back(make_shard):
    shard = make_shard()
    with shard.pool():
        big = torch.arange(32 * MIB, dtype=torch.int32, device="cuda")
        small = torch.ones(100, device="cuda")
    outside = torch.ones(100, device="cuda")
    assert [sw.shard_of(tensor) for tensor in (big, small, outside)] == [shard, shard, None]
    addresses, before = (big.data_ptr(), small.data_ptr()), free_bytes()
    sw.sleep(shard)
    assert free_bytes() - before >= big.nbytes
    sw.wake(shard)
    assert (big.data_ptr(), small.data_ptr()) == addresses
    assert big.equal(torch.arange(32 * MIB, dtype=torch.int32, device="cuda")) and small.sum() == 100


def test_only_what_holds_tensors_is_copied(make_shard):
    """FR-D4: half of the tensors freed, no cache emptied."""
    shard = make_shard()
    with shard.pool():
        tensors = [torch.full((16 * MIB,), value, dtype=torch.uint8, device="cuda") for value in range(8)]
    kept = tensors[::2]
    del tensors
    report = sw.sleep(shard)
    assert sum(tensor.nbytes for tensor in kept) <= report.live <= sum(tensor.nbytes for tensor in kept) + len(kept) * 4 * MIB
    sw.wake(shard)
    assert all(tensor.eq(2 * at).all() for at, tensor in enumerate(kept))


def test_a_dead_part_of_a_segment_is_used_again_after_the_wake(make_shard):
    shard = make_shard()
    with shard.pool():
        first, second = (torch.full((4 * MIB,), value, dtype=torch.uint8, device="cuda") for value in (1, 2))
    del first
    sw.sleep(shard)
    sw.wake(shard)
    mapped = shard.stats().mapped
    with shard.pool():
        third = torch.full((4 * MIB,), 3, dtype=torch.uint8, device="cuda")
    assert third.eq(3).all() and second.eq(2).all()
    assert sw.shard_of(third) is shard and shard.stats().mapped == mapped


def test_a_full_device_inside_a_pool_is_both_errors_after_pytorchs_own_retry(make_shard):
    shard = make_shard()
    held = torch.empty(int(free_bytes() * 0.8), dtype=torch.uint8, device="cuda")
    del held  # now PyTorch's cache holds most of the device, and gives it up when asked again
    with shard.pool():
        half = torch.empty(int(torch.cuda.mem_get_info()[1] * 0.4), dtype=torch.uint8, device="cuda")
    assert sw.shard_of(half) is shard
    with pytest.raises(sw.OutOfMemory) as raised, shard.pool():
        torch.empty(torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
    assert isinstance(raised.value, torch.OutOfMemoryError)


def test_a_wake_empties_pytorchs_cache_before_it_fails(make_shard):
    """FR-C4: the cache holds nearly all of the device."""
    shard = make_shard()
    tensor = torch.full((512 * MIB,), 5, dtype=torch.uint8, device="cuda")
    sw.adopt([tensor], shard)
    torch.cuda.empty_cache()
    sw.sleep(shard)
    held = torch.empty(free_bytes() - 128 * MIB, dtype=torch.uint8, device="cuda")
    del held
    assert free_bytes() < 512 * MIB
    sw.wake(shard)
    assert tensor.eq(5).all()


def test_work_in_flight_on_a_side_stream_is_kept(make_shard):
    """FR-A1, E1: the content after the wake is the kernel's result."""
    shard = make_shard()
    with shard.pool():
        tensor = torch.zeros(16 * MIB, device="cuda")
    side = torch.cuda.Stream()
    for cycle in range(1, 6):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)
            tensor.add_(1)
        sw.sleep(shard)
        sw.wake(shard)
        assert tensor.eq(cycle).all()


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
    assert first.item() == second.item() == wanted


@pytest.mark.parametrize("in_shard", [False, True])
def test_a_graph_replays_after_the_wake_without_a_new_capture(in_shard, make_shard):
    """FR-G6, A2: also with a shard as the graph's pool; replays are queued on three streams when the sleep begins."""
    weights, graphs = make_shard(), make_shard()
    with weights.pool():
        model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda().requires_grad_(False)
        inputs = torch.randn(64, 1024, device="cuda")
    sw.adopt([model, inputs], weights)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model(inputs)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    pool = graphs.mem_pool(for_graphs=True).id if in_shard else None
    with torch.cuda.graph(graph, pool=pool):
        outputs = model(inputs)
    graph.replay()
    wanted = outputs.clone()
    for _ in range(20):
        for stream in [torch.cuda.Stream() for _ in range(3)]:
            with torch.cuda.stream(stream):
                graph.replay()
        sw.sleep(weights, graphs)
        sw.wake(weights, graphs)
        outputs.zero_()
        graph.replay()
        assert torch.equal(outputs, wanted)


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


@pytest.mark.parametrize("setting", SPELLINGS, ids=lambda setting: "-".join(setting))
def test_every_spelling_of_expandable_segments_works(setting):
    """FR-G1: never 0 bytes freed in silence."""
    import os

    done = subprocess.run([sys.executable, "-c", IN_A_POOL.format(setting="")], env={**os.environ, **setting},
                          capture_output=True, text=True)
    assert done.stdout.strip() == "True True True True", done.stderr


def test_expandable_segments_set_at_run_time_work():
    """FR-G1."""
    setting = 'torch.cuda.memory._set_allocator_settings("expandable_segments:True")'
    done = subprocess.run([sys.executable, "-c", IN_A_POOL.format(setting=setting)], capture_output=True, text=True)
    assert done.stdout.strip() == "True True True True", done.stderr


def test_capturable_optimizers_sleep(make_shard):
    model = nn.Linear(256, 256).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True, fused=True)
    job = sw.attach(model, optimizer, params=make_shard("params"), optim=make_shard("optim"))
    for _ in range(3):
        model(torch.ones(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        job.sleep()
        with pytest.raises(RuntimeError, match="asleep"):
            model.weight.sum()
        job.wake()
    assert sw.audit(model, optimizer) == []


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_two_devices_have_two_shards_of_one_name():
    """FR-G3."""
    shards = [sw.shard("both", device=index) for index in range(2)]
    tensors = []
    for index, shard in enumerate(shards):
        with torch.cuda.device(index), shard.pool():
            tensors.append(torch.full((1000,), index, device="cuda"))
    assert [sw.shard_of(tensor) for tensor in tensors] == shards
    sw.sleep(*shards)
    sw.wake(*shards)
    assert all(tensor.eq(index).all() for index, tensor in enumerate(tensors))
