# SPDX-License-Identifier: Apache-2.0
"""What calls answer is a plain value: it is copied, sent to other processes and told in one line."""
import stillwake as sw
import torch


def test_an_adopt_tells_itself_in_one_sentence(shard):
    done = sw.adopt({"one": torch.ones(3), "other": torch.ones(5), "empty": torch.ones(0)}, shard)
    assert str(done) == f"adopted into '{shard.name}': 2 storages of 32 bytes moved, 0 were inside, 1 empty"


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
