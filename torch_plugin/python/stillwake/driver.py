# SPDX-License-Identifier: Apache-2.0
"""The driver: which one, and what it says of its devices."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from . import _cpu, arguments
from .errors import InvalidArgument


@dataclass(frozen=True)
class Driver:
    """The driver of this process."""

    kind: str  #: "cuda" or "emulated"
    description: str  #: one line: version, devices
    device_count: int

    def memory(self, index: int = 0) -> tuple[int, int]:
        """Free and total bytes of a device, as the driver tells them (neighbours count too)."""
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < self.device_count:
            raise InvalidArgument(f"memory of device {arguments.told(index)}: there are devices 0 to "
                                  f"{self.device_count - 1}")
        return _cpu.device_memory(index)

    def calls(self) -> dict[str, int]:
        """How often each driver call was made since the driver was opened."""
        return _cpu.driver_calls()[0]

    def __str__(self) -> str:
        return self.description


def driver(kind: Optional[str] = None) -> Driver:
    """The driver, opened at the first call.

    kind: "cuda", "emulated", or None for the one that is open, else the one that STILLWAKE_DRIVER names, else "cuda".
    Raises `DriverMissing` on a machine without a GPU where the emulation was not asked for, and `InvalidArgument` when
    another kind is open already.
    """
    kinds = {"cuda": _cpu.DriverKind.CUDA, "emulated": _cpu.DriverKind.EMULATED, None: None}
    if not isinstance(kind, (str, type(None))) or kind not in kinds:
        raise InvalidArgument(f"driver kind {arguments.told(kind)}: there are 'cuda' and 'emulated'")
    opened = _cpu.open_driver(kinds[kind])
    name = "cuda" if opened == _cpu.DriverKind.CUDA else "emulated"
    return Driver(name, _cpu.describe_driver(), _cpu.device_count())
