# SPDX-License-Identifier: Apache-2.0
"""Where the installed PyTorch keeps what a build needs, a line each: version, root folder, C++11 ABI (0 or 1), whether
it was built with CUDA (0 or 1), and the folders of the CUDA runtime's headers (with ; between; empty: none found).

It reads files instead of importing torch, which takes seconds. Ends with 1 and a reason where there is none."""
import importlib.util
import os
import re
import sys
from pathlib import Path


def cuda_headers(root):
    """The folders that make up the CUDA runtime's headers, in the order to search: those of the packages beside torch,
    else of a toolkit. The packages of CUDA 13 leave out the folder crt; the copy that comes with Triton has it."""
    beside = root.parent / "nvidia"
    toolkits = [Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    toolkits.append(Path("/usr/local/cuda/include"))
    candidates = [*sorted(beside.glob("cu[0-9]*/include")), beside / "cuda_runtime/include", *toolkits]
    runtime = next((folder for folder in candidates if (folder / "cuda_runtime_api.h").exists()), None)
    if runtime is None or (runtime / "crt/host_config.h").exists():
        return [runtime] if runtime else []
    rest = [*toolkits, root.parent / "triton/backends/nvidia/include"]
    completing = next((folder for folder in rest if (folder / "crt/host_config.h").exists()), None)
    return [runtime, completing] if completing else []


def main():
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        sys.exit(f"{sys.executable} has no torch")
    root = Path(found.submodule_search_locations[0])
    told = (root / "version.py").read_text()
    version = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", told).group(1)
    has_cuda = (root / "lib/libc10_cuda.so").exists()
    # Wheels of 2.6 and newer have the C++11 ABI; an older one says so in its library's symbols, and is too old for us.
    if tuple(int(part) for part in version.split(".")[:2]) < (2, 11):
        sys.exit(f"torch {version} is older than 2.11, the oldest that Stillwake works with")
    print(version, root, 1, int(has_cuda), ";".join(map(str, cuda_headers(root) if has_cuda else [])), sep="\n")


main()
