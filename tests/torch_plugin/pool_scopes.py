# SPDX-License-Identifier: Apache-2.0
"""What the scopes of pools go through on either device: left in any order, interrupted at every line."""
import sys

import stillwake as sw
import torch
from stillwake import shards as shards_module
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def left_out_of_order(outer, inner, device):
    """Leaves the outer pool first, and asserts that the inner one goes on until it is left."""
    first, second = outer.pool(), inner.pool()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sw.shard_of(torch.ones(10, device=device)) is inner, "the one inside goes on"
    second.__exit__(None, None, None)
    assert sw.shard_of(torch.ones(10, device=device)) is None


def _once_inside(shard, device, interrupt_at):
    lines = 0

    def at_line(frame, event, _):
        nonlocal lines
        if frame.f_code.co_filename != shards_module.__file__:
            return None
        lines += event == "line"
        if event == "line" and lines == interrupt_at:
            sys.settrace(None)
            raise KeyboardInterrupt
        return at_line

    sys.settrace(at_line)
    try:
        with shard.pool():
            sys.settrace(None)
            torch.ones(1, device=device)
            sys.settrace(at_line)
    finally:
        sys.settrace(None)


def interrupted_at_every_line(shard, device):
    """What Ctrl-C does, once at every line of entering and leaving. Asserts after each that the thread is outside, and
    answers how many lines there are."""
    places, interrupted = 0, True
    while interrupted:
        try:
            _once_inside(shard, device, places + 1)
            interrupted = False
        except KeyboardInterrupt:
            places += 1
        assert sw.shard_of(torch.ones(1, device=device)) is None, f"line {places}"
    assert _get_current_dispatch_mode_stack() == [], "the last one, which nothing interrupted, has ended what was left"
    return places
