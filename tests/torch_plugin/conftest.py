# SPDX-License-Identifier: Apache-2.0
"""What every test of the Python package starts from: shards with names of their own, all awake and closed afterwards."""
import gc
import itertools

import pytest
import stillwake as sw

_numbers = itertools.count()

# What the imports made lives as long as the process: a collection after each test need not look at it again.
gc.collect()
gc.freeze()


@pytest.fixture
def make_shard():
    """Makes shards that are closed at the end of the test."""
    made = []

    def make(name="shard", **options):
        made.append(sw.shard(f"{name}-{next(_numbers)}", **options))
        return made[-1]

    yield make
    gc.collect()
    sw.wake(*made)
    for shard in made:
        shard._raw.close() if shard.stats().blocks == 0 else None


@pytest.fixture
def shard(make_shard):
    return make_shard()
