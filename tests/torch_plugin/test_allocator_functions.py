# SPDX-License-Identifier: Apache-2.0
"""The functions that PyTorch's CUDA allocators call: a pool's segments, and every tensor of the global mode.

They are called here as PyTorch calls them, on the emulated driver; the pools themselves need a GPU."""
import ctypes
import threading

import pytest
import stillwake as sw
import torch
from stillwake import _cpu, shards

_cuda = pytest.importorskip("stillwake._cuda", reason="this torch is built without CUDA")
SEGMENT = 20 << 20


def fill(address, size, value):
    ctypes.memset(address, value, size)


def holds(address, size, value):
    return ctypes.string_at(address, size) == bytes([value]) * size


def test_a_segment_sleeps_and_wakes_at_its_address(shard):
    segment = _cuda.allocate_segment(shard._raw.key, SEGMENT, 0)
    fill(segment, SEGMENT, 7)
    assert sw.sleep(shard).live == SEGMENT
    sw.wake(shard)
    assert holds(segment, SEGMENT, 7)
    _cuda.free_segment(segment)
    assert shard.stats().blocks == 0


def test_a_full_device_is_null_so_that_pytorch_tries_again(make_shard):
    shard = make_shard(addresses=32 << 20)
    first = _cuda.allocate_segment(shard._raw.key, SEGMENT, 0)
    assert first != 0
    assert _cuda.allocate_segment(shard._raw.key, SEGMENT, 0) == 0
    assert isinstance(_cpu.take_failure(), sw.OutOfMemory)
    assert _cuda.allocate_segment(shard._raw.key, 1 << 40, 0) == 0, "more than the device has is a full device, too"
    _cuda.free_segment(first)
    again = _cuda.allocate_segment(shard._raw.key, SEGMENT, 0)
    assert again != 0
    _cuda.free_segment(again)


def test_asleep_never_looks_like_a_full_device(shard):
    segment = _cuda.allocate_segment(shard._raw.key, SEGMENT, 0)
    sw.sleep(shard)
    with pytest.raises(sw.Asleep, match="asleep") as raised:
        _cuda.allocate_segment(shard._raw.key, SEGMENT, 0)
    assert not isinstance(raised.value, torch.OutOfMemoryError)
    _cuda.free_segment(segment)  # any state, only queued
    sw.wake(shard)
    assert shard.stats().blocks == 0


def test_no_bytes_are_no_segment(shard):
    assert _cuda.allocate_segment(shard._raw.key, 0, 0) == 0
    _cuda.free_segment(0)


def test_a_stranger_is_left_alone(shard):
    buffer = ctypes.create_string_buffer(64)
    _cuda.free_segment(ctypes.addressof(buffer))
    assert shard.stats().blocks == 0


def test_the_global_functions_use_the_threads_shard(make_shard):
    named = make_shard()
    owners = {}

    def allocate(label):
        owners[label] = block = _cpu.torch_malloc(1000, 0)
        fill(block, 1000, 3)

    with sw.use(named):
        allocate("named")
        other = threading.Thread(target=allocate, args=("other thread",))
        other.start()
        other.join()
    allocate("after")
    default = sw.shard("default")
    assert named.stats().blocks == 1 and default.stats().blocks == 2
    sw.sleep(named, default)
    sw.wake(named, default)
    for block in owners.values():
        assert holds(block, 1000, 3)
        _cpu.torch_free(block, 1000, 0)
    assert named.stats().blocks == 0 and default.stats().blocks == 0


def test_every_shard_is_also_the_default_one_that_no_python_made():
    block = _cpu.torch_malloc(1000, 0)
    fill(block, 1000, 4)
    shards._made.pop(("default", "cpu"), None)  # as in a program that never asked for it
    sw.sleep()
    assert sw.shard("default").state == "asleep"
    sw.wake()
    assert holds(block, 1000, 4)
    _cpu.torch_free(block, 1000, 0)


def test_the_global_malloc_raises_where_null_would_become_a_tensor(make_shard):
    shard = make_shard()
    with sw.use(shard):
        with pytest.raises(sw.OutOfMemory, match=str(1 << 40)):
            _cpu.torch_malloc(1 << 40, 0)
        with pytest.raises(sw.InvalidArgument, match="-1"):
            _cpu.torch_malloc(-1, 0)
        assert _cpu.torch_malloc(0, 0) == 0
        block = _cpu.torch_malloc(10, 0)
        sw.sleep(shard)
        with pytest.raises(sw.Asleep):
            _cpu.torch_malloc(10, 0)
        _cpu.torch_free(block, 10, 0)
    sw.wake(shard)


def test_use_names_a_shard_and_goes_back(make_shard):
    one, other = make_shard(), make_shard()
    with sw.use(one):
        with sw.use(other):
            assert _cpu.used().name == other.name
        assert _cpu.used().name == one.name
    assert _cpu.used() is None
    sw.use(one)
    assert _cpu.used().name == one.name
    sw.use(None)
    with pytest.raises(sw.InvalidArgument, match="'params'"):
        sw.use("params")


def test_install_needs_a_torch_that_has_not_started_cuda(monkeypatch):
    monkeypatch.setattr("stillwake.global_mode.driver", lambda: sw.Driver("cuda", "", 1))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(sw.Busy, match="CUDA has started"):
        sw.install()


def test_the_library_exports_what_pluggable_allocators_look_up():
    library = ctypes.CDLL(sw.library_path())
    for name in ("stillwake_torch_malloc", "stillwake_torch_free"):
        assert getattr(library, name)


def test_a_pool_object_of_pytorch_needs_a_gpu(shard):
    with pytest.raises(sw.InvalidArgument, match="belongs to a GPU"):
        shard.mem_pool()


def test_an_operator_that_finds_the_device_full_is_asked_again_once_room_was_made(make_shard, monkeypatch):
    """On a GPU the room is PyTorch's cache, which PyTorch itself keeps while anybody is inside a pool."""
    shard = make_shard(addresses=32 << 20)
    with shard.pool():
        held = [torch.empty(20 << 20, dtype=torch.uint8)]
    asked = []

    def make_room():
        asked.append(len(held))
        held.clear()
        return asked[-1] > 0

    monkeypatch.setattr(shards._MakesRoom, "_make_room", staticmethod(make_room))
    with shard.pool(), shards._MakesRoom():
        tensor = torch.full((20 << 20,), 7, dtype=torch.uint8)
    assert asked == [1] and sw.shard_of(tensor) is shard and tensor.eq(7).all()
    with pytest.raises(sw.OutOfMemory, match=shard.name), shard.pool(), shards._MakesRoom():
        torch.full((20 << 20,), 7, dtype=torch.uint8)
    assert asked == [1, 0], "nothing came free: it is not asked a second time"
    with pytest.raises(sw.OutOfMemory), shard.pool(), shards._MakesRoom():
        torch.ones(20 << 20, dtype=torch.uint8, out=torch.empty(0, dtype=torch.uint8))
    assert asked == [1, 0], "an operator that writes into its arguments may have done half of its work"
    assert tensor.eq(7).all()


def test_without_a_gpu_there_is_no_cache_to_empty(shard):
    with shard.pool():
        assert not _cuda.is_inside_pool() and not _cuda.empty_cache()
