# SPDX-License-Identifier: Apache-2.0
"""What every test of the Python package starts from: shards with names of their own, all closed afterwards."""
import contextlib
import faulthandler
import gc
import itertools

import pytest
import stillwake as sw
from stillwake.shards import all_shards

_numbers = itertools.count()


def pytest_sessionfinish(session, exitstatus):
    """A run in which every test was skipped is told as a skipped one."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == 0 and reporter.stats.get("skipped") and not reporter.stats.get("passed"):
        session.exitstatus = 77


@pytest.fixture(scope="session", autouse=True)
def imports_are_not_collected():
    """What the imports made lives as long as the process: a collection after each test need not look at it again."""
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
    for shard in set(made) & set(all_shards()):
        sw.wake(shard)
        with contextlib.suppress(sw.Busy):  # tensors of the test live on
            shard.close()


@pytest.fixture
def shard(make_shard):
    return make_shard()


@pytest.fixture(scope="session")
def two_ranks():
    """Two processes with a process group over gloo; both must end well after the last test."""
    from pair_of_ranks import TwoRanks
    pair = TwoRanks()
    yield pair
    assert set(pair.close()) <= {0}


@pytest.fixture
def nothing_hangs():
    """Tells where every thread stands, and ends the process, when a test takes 60 s."""
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def one_rank():
    """This process as a rank without others."""
    from pair_of_ranks import OneRank
    rank = OneRank()
    yield rank
    rank.close()
