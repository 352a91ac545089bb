# SPDX-License-Identifier: Apache-2.0
"""What callers pass, checked where it comes in: a wrong value is an `InvalidArgument` that names it and what would be
right."""
from __future__ import annotations

import math
from typing import Any, Optional

import torch

from .errors import InvalidArgument


def told(value: Any) -> str:
    """A wrong value in a message. A tensor's own text would be its bytes, which a sleeping one has not."""
    return f"a {type(value).__name__}" if isinstance(value, torch.Tensor) else repr(value)


def seconds(value: Any, name: str = "timeout") -> Optional[float]:
    """A time from 0 on, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) or value < 0:
        raise InvalidArgument(f"{name}={told(value)}: None or a number of seconds from 0 on is possible")
    return float(value)


def flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name}={told(value)}: True and False are possible")
    return value


def size(value: Any, name: str) -> Optional[int]:
    """A count of bytes from 1 on, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 63:
        raise InvalidArgument(f"{name}={told(value)}: None or a number of bytes from 1 on is possible")
    return value


def tensor(value: Any, name: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise InvalidArgument(f"{name}: a tensor is needed, not {told(value)} (a {type(value).__name__})")
    return value


def stream(value: Any, name: str) -> int:
    """The number of a CUDA stream: a `torch.cuda.Stream`, or its `cuda_stream`."""
    handle = getattr(value, "cuda_stream", value)
    if isinstance(handle, bool) or not isinstance(handle, int) or handle < 0:
        raise InvalidArgument(f"{name}: a torch.cuda.Stream or its number is needed, not {told(value)}")
    return handle
