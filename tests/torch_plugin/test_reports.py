# SPDX-License-Identifier: Apache-2.0
"""What calls answer is a plain value: it is copied, sent to other processes and told in one line."""
import copy
import pickle

import pytest
import stillwake as sw
import torch
from stillwake import _cpu

THROUGH = pytest.mark.parametrize("through", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value)),
                                              lambda value: pickle.loads(pickle.dumps(value, protocol=2))],
                                  ids=["copy", "deepcopy", "pickle", "pickle of protocol 2"])


def told(value):
    """All that a value shows, values inside it too."""
    if isinstance(value, (list, tuple)):
        return [told(part) for part in value]
    if type(value).__module__ == "stillwake._cpu":
        return {name: told(getattr(value, name)) for name in dir(value) if not name.startswith("_")}
    return value


@THROUGH
def test_a_report_arrives_whole(through, make_shard):
    shard = make_shard()
    with shard.pool():
        tensor = torch.rand(1 << 20)
    for report in (sw.sleep(shard), sw.sleep(shard), sw.wake(shard)):
        gone = through(report)
        assert type(gone) is sw.Report and gone is not report
        assert told(gone) == told(report) and str(gone) == str(report) and repr(gone) == repr(report)
    assert tensor.numel() == 1 << 20
    steps = sw.sleep(shard).steps
    assert told(through(steps)) == told(steps) and steps


@THROUGH
def test_a_report_arrives_with_what_was_not_freed(through, shard):
    with shard.pool():
        tensor = torch.ones(1000)
    _cpu.inject_faults("cuMemUnmap:2=CUDA_ERROR_INVALID_HANDLE,cuMemRelease:1=CUDA_ERROR_INVALID_HANDLE")
    try:
        report = sw.sleep(shard)
    finally:
        _cpu.inject_faults("")
    assert report.leftovers, "the fault left nothing: the test shows nothing"
    assert told(through(report)) == told(report)
    assert told(through(report.leftovers[0])) == told(report.leftovers[0])
    del tensor


@THROUGH
def test_figures_strays_and_what_an_adopt_did_arrive_whole(through, shard):
    done = sw.adopt([torch.ones(3)], shard)
    assert through(done) == done and str(through(done)) == str(done)
    strays = sw.audit({"outside": torch.ones(5)})
    assert through(strays) == strays
    stats = sw.stats(shard)
    gone = through(stats)
    assert list(gone) == list(stats) and type(gone[shard.name]) is sw.ShardStats
    assert told(gone[shard.name]) == told(stats[shard.name])
    assert through(sw.driver()) == sw.driver()


def test_an_adopt_tells_itself_in_one_sentence(shard):
    done = sw.adopt({"one": torch.ones(3), "other": torch.ones(5), "empty": torch.ones(0)}, shard)
    assert str(done) == f"adopted into '{shard.name}': 2 storages of 32 bytes moved, 0 were inside, 1 empty"


def test_a_pickle_of_another_version_is_refused(shard):
    maker, (kind,), state = shard.stats().__reduce_ex__(2)[:3]
    with pytest.raises(sw.InvalidArgument, match="10 values where 9.*another version"):
        maker(kind).__setstate__((*state, 0))


class Holder(torch.nn.Module):
    def __init__(self, shard):
        super().__init__()
        self.home, self.layer = shard, torch.nn.Linear(2, 2)


def test_a_shard_is_not_sent_and_a_copy_of_what_names_it_names_it_too(shard):
    with pytest.raises(sw.InvalidArgument, match=f"'{shard.name}' cannot be pickled.*Send its name"):
        pickle.dumps({"where": shard})
    copied = copy.deepcopy(Holder(shard))
    assert copied.home is shard and copy.copy(shard) is shard


def test_a_job_is_not_sent_and_its_reports_are(make_shard):
    model = torch.nn.Linear(3, 3)
    job = sw.attach(model, params=make_shard())
    with pytest.raises(sw.InvalidArgument, match="a Job cannot be pickled.*attach in the other process"):
        pickle.dumps(job)
    report = job.sleep()
    gone = pickle.loads(pickle.dumps(report))
    assert str(gone) == str(report) and told(gone.report) == told(report.report)
    job.wake()


def test_a_jobs_report_tells_the_gradients_that_it_dropped(make_shard):
    model = torch.nn.ModuleList([torch.nn.Linear(3, 5), torch.nn.Embedding(7, 4, sparse=True)])
    job = sw.attach(model, torch.optim.SGD(model.parameters()), params=make_shard(), optim=make_shard())
    (model[0](torch.ones(1, 3)).sum() + model[1](torch.tensor([1, 6])).sum()).backward()
    report = job.sleep()
    expected = 4 * (3 * 5 + 5) + (2 * 4 * 4 + 2 * 8)  # the last: two rows of four numbers, and their two indices
    assert (report.gradients_dropped, report.gradient_bytes) == (3, expected)
    assert str(report) == f"{report.report}; 3 gradients of {expected} bytes dropped"
    job.wake()
    again = job.sleep()
    assert again.gradients_dropped == 0 and str(again) == str(again.report)
    job.wake()
