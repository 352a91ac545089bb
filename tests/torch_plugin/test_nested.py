# SPDX-License-Identifier: Apache-2.0
"""Nested tensors, of both layouts: adopted by the storages inside, shown by host views as what they are."""
import pytest
import stillwake as sw
import torch

ROWS = [torch.arange(6.0).view(2, 3), torch.arange(6.0, 18.0).view(4, 3), torch.arange(18.0, 21.0).view(1, 3)]


def nested(layout, rows=ROWS):
    return torch.nested.nested_tensor([row.clone() for row in rows], layout=layout)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_a_host_view_of_a_nested_tensor_has_its_rows(layout, shard):
    tensor = nested(layout)
    sw.adopt([tensor], shard)
    assert sw.shard_of(tensor) is shard
    sw.sleep(shard)
    with pytest.raises(RuntimeError, match="asleep"):
        tensor.sin()
    view = sw.host_view({"deep": [tensor]})["deep"][0]
    assert view.is_nested and view.layout == layout and type(view) is type(tensor)
    assert all(row.equal(expected) for row, expected in zip(view.unbind(), ROWS))
    sw.wake(shard)
    assert all(row.equal(expected) for row, expected in zip(tensor.unbind(), ROWS))
    with pytest.raises(RuntimeError, match="woke"):
        view.sin()


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_what_is_written_into_a_nested_view_is_restored(layout, shard):
    tensor = nested(layout)
    sw.adopt([tensor], shard)
    sw.sleep(shard)
    sw.host_view(tensor, write=True).unbind()[1].fill_(5)
    assert not sw.wake(shard).verified
    rows = tensor.unbind()
    assert rows[1].eq(5).all() and rows[0].equal(ROWS[0]) and rows[2].equal(ROWS[2])


def test_a_transposed_nested_tensor_keeps_its_strides(shard):
    tensor = nested(torch.strided).transpose(1, 2)
    sw.adopt([tensor], shard)
    sw.sleep(shard)
    view = sw.host_view(tensor)
    assert view._nested_tensor_strides().equal(tensor._nested_tensor_strides())
    assert all(row.equal(expected.t()) for row, expected in zip(view.unbind(), ROWS))


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_a_nested_tensor_outside_of_every_shard_is_passed_through(layout):
    tensor = nested(layout)
    assert sw.host_view([tensor])[0] is tensor
    assert len(sw.audit([tensor])) >= 1
