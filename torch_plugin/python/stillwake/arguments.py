# SPDX-License-Identifier: Apache-2.0
"""What callers pass, checked where it comes in: a wrong value is an `InvalidArgument` that names it and what would be
right."""
from __future__ import annotations

import math
from typing import Any, Optional

import torch

from .errors import InvalidArgument


def seconds(value: Any, name: str = "timeout") -> Optional[float]:
    """A time from 0 on, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) or value < 0:
        raise InvalidArgument(f"{name}={value!r}: None or a number of seconds from 0 on is possible")
    return float(value)


def flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name}={value!r}: True and False are possible")
    return value


def size(value: Any, name: str) -> Optional[int]:
    """A count of bytes from 1 on, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 63:
        raise InvalidArgument(f"{name}={value!r}: None or a number of bytes from 1 on is possible")
    return value


def tensor(value: Any, name: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise InvalidArgument(f"{name}: a tensor is needed, not {value!r} (a {type(value).__name__})")
    return value


def stream(value: Any, name: str) -> int:
    """The number of a CUDA stream: a `torch.cuda.Stream`, or its `cuda_stream`."""
    handle = getattr(value, "cuda_stream", value)
    if isinstance(handle, bool) or not isinstance(handle, int) or handle < 0:
        raise InvalidArgument(f"{name}: a torch.cuda.Stream or its number is needed, not {value!r}")
    return handle
