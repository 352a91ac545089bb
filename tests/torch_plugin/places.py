# SPDX-License-Identifier: Apache-2.0
"""Where tests put their tensors: on the GPU, or in the CPU memory of the emulated driver. Tests that run on either use
`DEVICE`; tests of what only CUDA has are marked `needs_gpu`."""
import os

import pytest
import torch
import torch.utils.deterministic

IS_EMULATED = os.environ.get("STILLWAKE_DRIVER") == "emulated"
GPUS = 0 if IS_EMULATED else torch.cuda.device_count()
DEVICE = torch.device("cuda", 0) if GPUS else torch.device("cpu")
MIB = 1 << 20
PAGE = 2 * MIB

needs_gpu = pytest.mark.skipif(GPUS == 0, reason="needs a GPU, and there is none")
needs_two_gpus = pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs, and there is {GPUS or 'none'}")
needs_a_driver = pytest.mark.skipif(GPUS == 0 and not IS_EMULATED,
                                    reason="there is no GPU, and the emulated driver was not asked for")


def device():
    """The device of this rank."""
    return torch.device("cuda", torch.cuda.current_device()) if GPUS else DEVICE


def synchronize():
    """Waits for the device; the emulation's CPU tensors wait for nothing."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def free_bytes():
    """Free bytes of the device, as its driver tells them."""
    import stillwake as sw

    return torch.cuda.mem_get_info(DEVICE)[0] if DEVICE.type == "cuda" else sw.driver().memory()[0]


def busy(seconds):
    """Queues a kernel on the current stream that does nothing for about so long."""
    torch.cuda._sleep(int(seconds * 1.9e9))  # cycles: the clock of an H200 is 1.98 GHz at most


def be_deterministic():
    """Two runs of one training are then equal bit for bit on a GPU, too. Before the first product of the process."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
