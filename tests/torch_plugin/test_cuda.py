# SPDX-License-Identifier: Apache-2.0
"""Pools over PyTorch's CUDA caching allocator: what lies where, what is copied, what comes back, a full device.

Suite gpu; the process ends with 77 where there is no GPU (conftest.py)."""
import gc
import random
import threading
import time

import pytest
import stillwake as sw
import torch
from places import MIB, free_bytes, needs_gpu, needs_two_gpus
from pool_scopes import interrupted_at_every_line, left_out_of_order
from torch import nn

pytestmark = needs_gpu


def filled(mib, value):
    return torch.full((mib * MIB,), value, dtype=torch.uint8, device="cuda")


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
    for use in (big.sum, small.clone, lambda: small.add_(1), small.cpu):
        with pytest.raises(RuntimeError, match="is asleep"):
            use()
    sw.wake(shard)
    assert (big.data_ptr(), small.data_ptr()) == addresses
    assert big.equal(torch.arange(32 * MIB, dtype=torch.int32, device="cuda")) and small.sum() == 100


def test_a_model_built_in_a_pool_lies_in_the_shard(make_shard):
    shard = make_shard()
    with shard.pool():
        model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).cuda()
    assert sw.audit(model) == []
    wanted = model.eval()(torch.ones(2, 64, device="cuda"))
    sw.sleep(shard)
    with pytest.raises(RuntimeError, match="is asleep"):
        model(torch.ones(2, 64, device="cuda"))
    sw.wake(shard)
    assert model(torch.ones(2, 64, device="cuda")).equal(wanted)


def test_of_two_nested_pools_the_innermost_wins(make_shard):
    outer, inner = make_shard(), make_shard()
    with outer.pool():
        first = torch.ones(10, device="cuda")
        with inner.pool():
            second = torch.ones(10, device="cuda")
            with torch.cuda.stream(torch.cuda.Stream()):
                third = torch.ones(10, device="cuda")
        fourth = torch.ones(10, device="cuda")
    with inner.pool(), outer.pool():
        fifth = torch.ones(10, device="cuda")
    tensors = [first, second, third, fourth, fifth, torch.ones(10, device="cuda")]
    assert [sw.shard_of(tensor) for tensor in tensors] == [outer, inner, inner, outer, outer, None]


def test_pools_are_left_in_any_order_and_interrupted_anywhere(make_shard):
    outer, inner = make_shard(), make_shard()
    left_out_of_order(outer, inner, "cuda")
    assert interrupted_at_every_line(outer, "cuda") >= 16
    sw.sleep(outer, inner)  # Busy while a thread is inside
    sw.wake(outer, inner)


def test_a_pool_of_ones_own_inside_a_shards_pool_wins_and_the_other_way_round(make_shard):
    shard, own = make_shard(), torch.cuda.MemPool()
    with shard.pool(), torch.cuda.use_mem_pool(own):
        assert sw.shard_of(torch.ones(10, device="cuda")) is None
    with torch.cuda.use_mem_pool(own), shard.pool():
        assert sw.shard_of(torch.ones(10, device="cuda")) is shard
    with torch.cuda.use_mem_pool(shard.mem_pool()):
        assert sw.shard_of(torch.ones(10, device="cuda")) is shard
        with pytest.raises(sw.Busy, match="use_mem_pool"), shard.pool():
            pass
    with shard.pool():
        assert sw.shard_of(torch.ones(10, device="cuda")) is shard


def test_two_threads_are_inside_one_pool_at_once(make_shard):
    shard, both, owners = make_shard(), threading.Barrier(2), []

    def allocate():
        with shard.pool():
            both.wait(10)
            owners.append(sw.shard_of(torch.ones(1000, device="cuda")))
            both.wait(10)
        owners.append(sw.shard_of(torch.ones(1000, device="cuda")))

    threads = [threading.Thread(target=allocate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(owners, key=str) == sorted([shard, shard, None, None], key=str)


def test_a_shard_does_not_sleep_while_a_thread_is_inside_its_pool(make_shard):
    """PyTorch would hand free parts of its segments out without asking anybody."""
    shard, other = make_shard(), make_shard()
    with shard.pool():
        tensor = torch.ones(1000, device="cuda")
        with pytest.raises(sw.Busy, match="inside its pool"):
            sw.sleep(shard)
        sw.sleep(other)
        sw.wake(other)
        tensor.add_(1)
    sw.sleep(shard)
    with pytest.raises(sw.Asleep, match=shard.name), shard.pool():
        pass
    sw.wake(shard)
    assert tensor.eq(2).all()


def test_only_what_holds_tensors_is_copied(make_shard):
    """FR-D4: half of the tensors freed, no cache emptied."""
    shard = make_shard()
    with shard.pool():
        tensors = [filled(16, value) for value in range(8)]
    kept = tensors[::2]
    del tensors
    report = sw.sleep(shard)
    size = sum(tensor.nbytes for tensor in kept)
    assert size <= report.live <= size + len(kept) * 4 * MIB
    sw.wake(shard)
    assert all(tensor.eq(2 * at).all() for at, tensor in enumerate(kept))


def test_a_dead_part_of_a_segment_is_used_again_after_the_wake(make_shard):
    shard = make_shard()
    with shard.pool():
        first, second = filled(4, 1), filled(4, 2)
    del first
    report = sw.sleep(shard)
    assert report.live <= 6 * MIB
    sw.wake(shard)
    mapped = shard.stats().mapped
    with shard.pool():
        third = filled(4, 3)
    assert third.eq(3).all() and second.eq(2).all()
    assert sw.shard_of(third) is shard and shard.stats().mapped == mapped


def test_what_died_in_a_pool_is_given_back_by_the_next_sleep(make_shard):
    """PyTorch keeps the segments of a live pool for ever; a shard does not."""
    shard = make_shard()
    with shard.pool():
        kept, dead = filled(8, 1), filled(200, 2)
    del dead
    sw.sleep(shard)
    before = free_bytes()
    sw.wake(shard)
    assert before - free_bytes() < 64 * MIB and shard.stats().mapped < 64 * MIB
    with shard.pool():
        more = filled(100, 3)
    address = kept.data_ptr()
    for _ in range(3):
        sw.sleep(shard)
        sw.wake(shard)
        assert kept.eq(1).all() and more.eq(3).all() and kept.data_ptr() == address
    del kept, more
    shard.close()


def test_cycles_with_random_frees_leave_a_constant_residue(make_shard):
    """FR-B1: asleep the device holds the same in every cycle, and handles do not pile up."""
    shard, choose = make_shard(), random.Random(1)
    with shard.pool():
        live = [filled(3, value) for value in range(12)]
    free, blocks = [], []
    for cycle in range(40):
        for at in choose.sample(range(12), 3):
            with shard.pool():
                live[at] = torch.full((choose.choice([1000, MIB, 5 * MIB]),), at, dtype=torch.uint8, device="cuda")
        sw.sleep(shard)
        assert (shard.stats().mapped, shard.stats().handles) == (0, 0)
        free.append(free_bytes())
        sw.wake(shard)
        blocks.append(shard.stats().blocks)
    assert all(tensor.eq(at).all() for at, tensor in enumerate(live))
    assert max(free[5:]) - min(free[5:]) <= 2 * MIB and max(blocks) <= 40


def test_tensors_freed_while_asleep_are_given_back_and_the_rest_is_exact(make_shard):
    """FR-B3: the cache is emptied while the shard sleeps, too (FR-G2)."""
    shard = make_shard()
    with shard.pool():
        tensors = [filled(24, value) for value in range(6)]
    sw.sleep(shard)
    del tensors[::2]
    gc.collect()
    torch.cuda.empty_cache()
    sw.wake(shard)
    assert [int(tensor[-1]) for tensor in tensors] == [1, 3, 5]
    assert all(tensor.eq(tensor[0]).all() for tensor in tensors)
    assert sw.sleep(shard).live <= 3 * 24 * MIB + 12 * MIB
    torch.cuda.empty_cache()
    sw.wake(shard)
    del tensors
    shard.close()


def test_pools_tensors_and_shards_go_in_any_order(make_shard):
    """FR-G2."""
    for order in range(6):
        shard = sw.shard(f"in any order {order}")
        pool = shard.mem_pool() if order % 2 else None
        with shard.pool():
            tensor = torch.ones(5 * MIB, device="cuda")
        sw.sleep(shard)
        if order % 3 == 0:
            del tensor
            torch.cuda.empty_cache()
        sw.wake(shard)
        if order % 3:
            with pytest.raises(sw.Busy, match="blocks of"):
                shard.close()
            assert tensor.sum() == 5 * MIB
            del tensor
        del pool
        torch.cuda.empty_cache()
        shard.close()


def test_a_full_device_inside_a_pool_makes_pytorch_give_up_its_cache(make_shard):
    shard, outer = make_shard(), make_shard()
    total = torch.cuda.mem_get_info()[1]
    held = torch.empty(int(free_bytes() * 0.8), dtype=torch.uint8, device="cuda")
    del held  # now PyTorch's cache holds most of the device
    with outer.pool(), shard.pool():
        half = torch.empty(int(total * 0.4), dtype=torch.uint8, device="cuda")
        assert sw.shard_of(half) is shard and sw.shard_of(torch.ones(10, device="cuda")) is shard
    with pytest.raises(sw.OutOfMemory, match=shard.name) as raised, shard.pool():
        torch.empty(total, dtype=torch.uint8, device="cuda")
    assert isinstance(raised.value, torch.OutOfMemoryError) and raised.value.code == 1
    with shard.pool():
        assert sw.shard_of(torch.ones(10, device="cuda")) is shard, "the pool works on"
    assert sw.shard_of(torch.ones(10, device="cuda")) is None
    del half
    shard.close()


def test_more_than_half_of_the_device_is_adopted(make_shard):
    """What is moved goes to PyTorch's cache first, which must give it up again."""
    shard = make_shard(policy="discard")
    torch.cuda.empty_cache()
    tensors = [torch.full((int(free_bytes() * share),), 7, dtype=torch.uint8, device="cuda")
               for share in (0.16, 0.19, 0.24, 0.31)]
    assert free_bytes() < sum(tensor.nbytes for tensor in tensors)
    sw.adopt(tensors, shard)
    assert all(sw.shard_of(tensor) is shard and tensor[-1] == 7 for tensor in tensors)
    del tensors
    shard.close()


def test_a_wake_empties_pytorchs_cache_before_it_fails(make_shard):
    """FR-C4: the cache holds nearly all of the device. FR-C1: held by tensors it is an error, and nothing is lost."""
    shard = make_shard()
    tensor = filled(512, 5)
    sw.adopt([tensor], shard)
    torch.cuda.empty_cache()
    sw.sleep(shard)
    held = torch.empty(free_bytes() - 128 * MIB, dtype=torch.uint8, device="cuda")
    before = free_bytes()
    with pytest.raises(sw.OutOfMemory, match="needed|free") as raised:
        sw.wake(shard)
    assert isinstance(raised.value, torch.OutOfMemoryError)
    assert shard.state == "asleep" and abs(free_bytes() - before) <= 2 * MIB
    assert sw.host_view(tensor).eq(5).all()
    del held
    assert free_bytes() < 512 * MIB
    sw.wake(shard)
    assert tensor.eq(5).all()


def test_every_byte_of_views_types_and_odd_sizes_returns(make_shard):
    """FR-E1; FR-E2: two shards share no page."""
    shard, other = make_shard(), make_shard()
    torch.manual_seed(3)
    with shard.pool():
        tensors = [torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
                   for size in (1, 511, 4097, 2 * MIB + 1)]
        tensors += [torch.randn(1001, device="cuda").to(kind)
                    for kind in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)]
        turned = torch.randn(7, 5, 3, dtype=torch.complex64, device="cuda").transpose(0, 2)
    with other.pool():
        strangers = [torch.ones(size, device="cuda") for size in (1, 1000, MIB)]
    pages = [{page for tensor in group for page in range(tensor.data_ptr() // (2 * MIB),
                                                         (tensor.data_ptr() + tensor.nbytes - 1) // (2 * MIB) + 1)}
             for group in (tensors, strangers)]
    assert not pages[0] & pages[1]
    views = [*tensors, *[tensor[tensor.numel() // 2:] for tensor in tensors], turned]
    for _ in range(20):
        expected = [view.clone() for view in views]
        sw.sleep(shard)
        sw.wake(shard)
        for view, was in zip(views, expected):
            assert view.contiguous().view(-1).view(torch.uint8).equal(was.contiguous().view(-1).view(torch.uint8))
        tensors[1].add_(1)


def test_discard_comes_back_as_zeros(make_shard):
    """FR-E3."""
    dropped, kept = make_shard(policy="discard"), make_shard()
    with dropped.pool():
        scratch = torch.full((MIB,), 5.0, device="cuda")
    with kept.pool():
        unknown = torch.full((MIB,), 6.0, device="cuda")
    for _ in range(3):
        sw.sleep(dropped, kept)
        sw.wake(dropped, kept)
        assert not scratch.any() and unknown.eq(6).all()
        scratch.fill_(5)


def test_prepared_and_trimmed_shards_pin_what_is_live(make_shard):
    """FR-D1, D2, D3, D5: no call pins memory after prepare; pinned bytes are the live pages; many small tensors move
    like one large."""
    small, large = make_shard(), make_shard()
    with small.pool():
        tensors = [torch.full((16_384,), float(value), device="cuda") for value in range(510)]
    with large.pool():
        whole = torch.ones(510 * 16_384, device="cuda")
    sw.prepare(small, large)
    pinning = [count for call, count in sw.driver().calls().items() if call.startswith("cuMemHostRegister")]
    many, one = sw.sleep(small), sw.sleep(large)
    assert many.copies <= one.copies + 1 and many.copied <= one.copied + 4 * MIB
    for shard, report in ((small, many), (large, one)):
        assert shard.stats().host_pinned <= report.live + 2 * MIB
    sw.wake(small, large)
    assert pinning == [count for call, count in sw.driver().calls().items() if call.startswith("cuMemHostRegister")]
    assert all(tensor.eq(value).all() for value, tensor in enumerate(tensors)) and whole.eq(1).all()
    sw.trim(small, large)
    assert small.stats().host_pinned == large.stats().host_pinned == 0


def test_eight_threads_allocate_in_pools_while_others_sleep_and_wake(make_shard):
    """FR-G3, G4: nested pools, several threads in one pool, snapshots meanwhile; bounded by 60 s."""
    pools, sleeper = [make_shard("pool") for _ in range(3)], make_shard("sleeper")
    held = torch.arange(1000.0, device="cuda")
    sw.adopt([held], sleeper)
    end, errors, cycles = time.monotonic() + 6, [], 0

    def allocate(number):
        choose, kept = random.Random(number), []
        with torch.cuda.stream(torch.cuda.Stream() if number % 2 else None):
            while time.monotonic() < end:
                outer, inner = choose.sample(pools, 2)
                size = choose.choice([1, 100, 5000, 300_000, 3_000_000])
                with outer.pool():
                    kept.append((torch.full((size,), float(number), device="cuda"), outer))
                    with inner.pool():
                        kept.append((torch.full((size,), float(number), device="cuda"), inner))
                    kept.append((torch.full((size,), float(number), device="cuda"), outer))
                kept.append((torch.full((size,), float(number), device="cuda"), None))
                for tensor, shard in kept[-4:]:
                    assert sw.shard_of(tensor) is shard, (sw.shard_of(tensor), shard)
                while len(kept) > 20:
                    assert kept.pop(choose.randrange(len(kept)))[0].eq(number).all()

    def guarded(number):
        try:
            allocate(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        sw.sleep(sleeper)
        torch.cuda.memory_snapshot()
        sw.wake(sleeper)
        assert held.sum() == 499_500
        cycles += 1
    for thread in threads:
        thread.join(54)
    assert not errors and cycles > 0 and not any(thread.is_alive() for thread in threads)
    gc.collect()
    for shard in pools:
        shard.close()


@needs_two_gpus
def test_two_devices_have_two_shards_of_one_name():
    """FR-G3."""
    shards = [sw.shard("both", device=index) for index in range(2)]
    tensors = []
    for index, shard in enumerate(shards):
        with torch.cuda.device(index), shard.pool():
            tensors.append(torch.full((1000,), index, device="cuda"))
    with shards[0].pool(), shards[1].pool():
        tensors += [torch.full((1000,), index, device=f"cuda:{index}") for index in range(2)]
    assert [sw.shard_of(tensor) for tensor in tensors] == 2 * shards
    sw.sleep(*shards)
    sw.wake(*shards)
    assert all(tensor.eq(at % 2).all() for at, tensor in enumerate(tensors))
