# SPDX-License-Identifier: Apache-2.0
"""What calls answer is a plain value: it is copied, sent to other processes and told in one line."""
import stillwake as sw
import torch


def test_an_adopt_tells_itself_in_one_sentence(shard):
    done = sw.adopt({"one": torch.ones(3), "other": torch.ones(5), "empty": torch.ones(0)}, shard)
    assert str(done) == f"adopted into '{shard.name}': 2 storages of 32 bytes moved, 0 were inside, 1 empty"
