# SPDX-License-Identifier: Apache-2.0
"""What users of comparable software ran into, as it looks from PyTorch. Each test names its row.

FR-B3, B4, C1 to C3, C5, C6, G2 to G5 are in test_threads, test_collector, test_exit, test_guard, test_fault_sweep and
test_memory_short.
"""
import gc
import random

import pytest
import stillwake as sw
import torch
from stillwake import _cpu

from process_facts import resident_bytes

MIB = 1 << 20
PAGE = 2 * MIB


def pinning_calls():
    return sum(count for call, count in sw.driver().calls().items() if call.startswith("cuMemHostRegister"))


def test_b1_cycles_with_random_frees_leave_a_constant_residue(make_shard):
    """FR-B1: asleep the device holds the same in every cycle, and resident memory is flat."""
    shard = make_shard()
    choose = random.Random(1)
    with shard.pool():
        live = [torch.full((200_000,), float(at)) for at in range(20)]
    asleep, resident = set(), []
    for cycle in range(80):
        for _ in range(3):
            at = choose.randrange(len(live))
            with shard.pool():
                live[at] = torch.full((choose.choice([1000, 200_000, 400_000]),), float(at))
        sw.sleep(shard)
        asleep.add((shard.stats().mapped, shard.stats().handles))
        sw.wake(shard)
        if cycle % 20 == 19:
            assert all(tensor.eq(at).all() for at, tensor in enumerate(live))
            resident.append(resident_bytes())
    assert asleep == {(0, 0)}
    assert max(resident[1:]) - min(resident[1:]) < 64 * MIB


def test_b2_waking_what_never_slept_and_sleeping_twice_touch_no_other_shard(make_shard):
    """FR-B2"""
    one, two, other = make_shard(), make_shard(), make_shard()
    tensors = [torch.ones(10) for _ in range(3)]
    for tensor, shard in zip(tensors, (one, two, other)):
        sw.adopt([tensor], shard)
    assert sw.wake(one, two).is_no_op
    sw.sleep(one, two)
    assert sw.sleep(one, two).is_no_op
    sw.wake(one)
    assert (one.state, two.state, other.state) == ("awake", "asleep", "awake")
    report = sw.wake(one, two)
    assert not report.is_no_op and (report.shards, report.shards_moved) == (2, 1)
    assert (other.stats().sleeps, other.stats().wakes) == (0, 0)


def test_d1_after_prepare_no_sleep_makes_a_pinning_call(make_shard):
    """FR-D1"""
    shard = make_shard()
    tensor = torch.ones(5 * MIB)
    sw.adopt([tensor], shard)
    sw.prepare(shard)
    before = pinning_calls()
    assert before > 0
    for _ in range(3):
        tensor.add_(1)
        sw.sleep(shard)
        sw.wake(shard)
    assert pinning_calls() == before and tensor.eq(4).all()


@pytest.mark.parametrize("bytes_", [1, 3 * MIB, 33 * MIB, 65 * MIB + 512])
def test_d2_pinned_bytes_are_the_live_pages(bytes_, make_shard):
    """FR-D2: no rounding to powers of two."""
    shard = make_shard()
    with shard.pool():
        tensor = torch.ones(bytes_, dtype=torch.uint8)
    sw.sleep(shard)
    assert shard.stats().host_pinned <= (-(-bytes_ // PAGE) + 1) * PAGE
    sw.wake(shard)
    assert tensor.eq(1).all()


def test_d3_trim_gives_resident_memory_back(make_shard):
    """FR-D3"""
    shard = make_shard()
    before = resident_bytes()
    with shard.pool():
        tensor = torch.ones(192 * MIB, dtype=torch.uint8)
    sw.sleep(shard)
    sw.wake(shard)
    del tensor
    gc.collect()
    sw.sleep(shard)
    sw.wake(shard)
    sw.trim(shard)
    assert shard.stats().host_pinned == 0
    assert resident_bytes() - before < 64 * MIB


def test_d4_what_was_dropped_is_not_copied(make_shard):
    """FR-D4: half the tensors are freed, and no cache is emptied."""
    shard = make_shard()
    with shard.pool():
        tensors = [torch.full((2 * MIB,), value, dtype=torch.uint8) for value in range(16)]
    del tensors[::2]
    gc.collect()
    report = sw.sleep(shard)
    assert report.copied <= 9 * PAGE and report.live == 8 * PAGE
    sw.wake(shard)
    assert [int(tensor[0]) for tensor in tensors] == list(range(1, 16, 2))


def test_d5_many_small_tensors_move_with_as_few_copies_as_one_large(make_shard):
    """FR-D5"""
    small, large = make_shard(), make_shard()
    tensors = [torch.full((16_384,), float(value)) for value in range(510)]
    sw.adopt(tensors, small)
    whole = torch.ones(510 * 16_384)
    sw.adopt([whole], large)
    many, one = sw.sleep(small), sw.sleep(large)
    assert many.copies <= one.copies + 1 and many.copied <= one.copied + PAGE
    sw.wake(small, large)
    assert all(tensor.eq(value).all() for value, tensor in enumerate(tensors)) and whole.eq(1).all()


def test_e1_every_byte_of_every_type_and_odd_size_returns_in_every_cycle(make_shard):
    """FR-E1"""
    shard = make_shard()
    torch.manual_seed(3)
    tensors = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in (1, 3, 511, 513, 4097, 2 * MIB + 1)]
    kinds = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2
    tensors += [torch.randn(1001).to(kind) for kind in kinds]
    tensors += [torch.randn(7, 5, 3, dtype=torch.complex64).transpose(0, 2)]
    sw.adopt(tensors, shard)
    views = [tensor.view(-1)[tensor.numel() // 2:] if tensor.is_contiguous() else tensor[1:] for tensor in tensors]
    changing = tensors[3]
    for cycle in range(100):
        expected = [tensor.clone() for tensor in tensors]
        expected_views = [view.clone() for view in views]
        sw.sleep(shard)
        sw.wake(shard)
        for got, was in zip(tensors + views, expected + expected_views):
            assert got.contiguous().view(torch.uint8).equal(was.contiguous().view(torch.uint8))
        changing.add_(cycle)


def test_e2_shards_never_share_a_page(make_shard):
    """FR-E2: nor does a freed block of one serve the other."""
    one, other = make_shard(), make_shard()
    pages = {one: set(), other: set()}
    for _ in range(50):
        for shard in (one, other):
            with shard.pool():
                tensor = torch.ones(1000)
            pages[shard].add(tensor.data_ptr() // PAGE)
            del tensor
    assert not pages[one] & pages[other]


def test_e3_what_nobody_discards_is_preserved(make_shard):
    """FR-E3: a discard shard comes back as zeros; a tensor that came in unseen keeps its bytes."""
    kept, dropped = make_shard(), make_shard(policy="discard")
    with dropped.pool():
        scratch = torch.full((MIB,), 5.0)
    with kept.pool():
        unknown = torch.full((MIB,), 6.0)
    for _ in range(3):
        sw.sleep(kept, dropped)
        sw.wake(kept, dropped)
        assert not scratch.any() and unknown.eq(6).all()
        scratch.fill_(5)


def test_e4_a_wake_maps_what_the_sleep_gave_back(make_shard):
    """FR-E4"""
    shard = make_shard()
    tensors = [torch.rand(3 * MIB), torch.zeros(MIB), torch.rand(100)]
    sw.adopt(tensors, shard)
    slept = sw.sleep(shard)
    woken = sw.wake(shard)
    assert woken.verified and woken.mapped >= slept.live >= sum(tensor.nbytes for tensor in tensors)
    assert woken.copied + woken.zero == slept.copied + slept.unchanged + slept.zero


@pytest.mark.parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"])
def test_g1_expandable_segments_in_the_environment_free_all_of_a_cpu_shard(variable, make_shard, monkeypatch):
    """FR-G1: never 0 bytes freed in silence. (What a GPU's pools do with it is in the suite gpu.)"""
    monkeypatch.setenv(variable, "expandable_segments:True")
    shard = make_shard()
    with shard.pool():
        tensor = torch.ones(MIB)
    assert sw.sleep(shard).freed >= 4 * MIB and shard.stats().mapped == 0
    sw.wake(shard)
    assert tensor.eq(1).all()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_g7_a_job_sleeps_right_after_init_and_its_later_state_is_found(kind, make_shard):
    """FR-G7: before the first step, with an empty optimizer."""
    def run(sleeps):
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        optimizer = kind(model.parameters(), lr=0.01, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
        job = sw.attach(model, optimizer, params=make_shard(), optim=make_shard()) if sleeps else None
        for _ in range(4):
            if job:
                job.sleep()
                job.wake()
            optimizer.zero_grad()
            model(torch.linspace(-1, 1, 32).view(4, 8)).square().sum().backward()
            optimizer.step()
        if job:
            assert [stray for stray in sw.audit(model, optimizer) if not stray.name.endswith((".grad", ".step"))] == []
        return [parameter.detach().clone() for parameter in model.parameters()]

    assert all(slept.equal(control) for slept, control in zip(run(True), run(False)))
    assert _cpu.injected_faults() == 0
