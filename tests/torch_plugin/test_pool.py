# SPDX-License-Identifier: Apache-2.0
"""Pools: what they make is guarded."""
import pytest
import stillwake as sw
import torch


@pytest.mark.parametrize("make", [
    lambda: torch.ones(9),
    lambda: torch.arange(9.0).view(3, 3).t(),
    lambda: torch.ones(9).split(3)[1],
    lambda: torch.ones(3, 3).sort().indices,
    lambda: torch.tensor([1.0, 2.0]),
    lambda: torch.nn.Parameter(torch.empty(3).uniform_()),
    lambda: torch.nn.Linear(3, 3).weight,
    lambda: torch.ones(3).to(torch.bfloat16),
    lambda: torch.ones(3).add(1).mul_(2),
    lambda: torch.empty(0).set_(torch.ones(4).untyped_storage(), 0, (4,), (1,)),
    lambda: torch.stack([torch.ones(3)] * 2).unbind()[0],
    lambda: torch.where(torch.ones(3) > 2, 1, 0),
    lambda: torch.nn.functional.layer_norm(torch.ones(2, 3, requires_grad=True), (3,)),
    lambda: torch._foreach_add([torch.ones(3)], 1)[0],
    lambda: torch.ones(3).to_sparse().values(),
    lambda: torch.load(SAVED)["tensor"],
], ids=lambda make: None)
def test_whatever_makes_a_tensor_in_a_pool_it_is_guarded(make, shard, tmp_path):
    global SAVED
    SAVED = tmp_path / "saved"
    torch.save({"tensor": torch.ones(3)}, SAVED)
    with shard.pool():
        made = make()
    assert sw.shard_of(made) is shard and shard._raw.has_adopted(made.untyped_storage()._cdata)
    sw.sleep(shard)
    with pytest.raises(RuntimeError, match="asleep"):
        made.clone()
    sw.wake(shard)
    made.clone()


def test_what_is_made_outside_is_not_watched(make_shard):
    shard, other = make_shard(), make_shard()
    with shard.pool():
        with other.pool():
            inner = torch.ones(3)
        outer = torch.ones(3)
    outside = torch.ones(3)
    held = [(inner, other), (outer, shard)]
    for tensor, home in held:
        assert [each._raw.has_adopted(tensor.untyped_storage()._cdata) for each in (shard, other)] == \
            [home is shard, home is other]
    assert not shard._raw.has_adopted(outside.untyped_storage()._cdata)
