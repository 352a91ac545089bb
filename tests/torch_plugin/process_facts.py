# SPDX-License-Identifier: Apache-2.0
"""What the system says about this process, as the other source of what the tests expect."""
import ctypes


def is_mapped(address: int, size: int) -> bool:
    """Whether [address, address + size) lies in readable memory of this process, in bytes (/proc/self/maps)."""
    end = address + size
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, permissions, *_ = line.split()
            first, last = (int(part, 16) for part in span.split("-"))
            if first <= address < last and permissions.startswith("r"):
                address = last
                if address >= end:
                    return True
    return False


def has_device_memory(address: int) -> bool:
    """Whether device memory is mapped at an address of the GPU, as its driver tells it."""
    mapped = ctypes.c_int(0)
    driver = ctypes.CDLL("libcuda.so.1")
    answer = driver.cuPointerGetAttribute(ctypes.byref(mapped), 13, ctypes.c_uint64(address))  # 13: ATTRIBUTE_MAPPED
    return answer == 0 and mapped.value == 1


def resident_bytes() -> int:
    """Resident memory of this process, in bytes (/proc/self/status, VmRSS)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))
