# SPDX-License-Identifier: Apache-2.0
"""Prints the folder that holds cuda.h and cudaTypedefs.h: a CUDA toolkit, or what pip installed."""
import glob
import os
import sys

candidates = [os.path.join(os.environ[name], "include") for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
candidates += ["/usr/local/cuda/include", *sorted(glob.glob("/usr/local/cuda-*/include"), reverse=True)]
root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
for base in [*glob.glob(os.path.join(root, ".venv/lib/python3*/site-packages")), *sys.path]:
    candidates += sorted(glob.glob(os.path.join(base, "nvidia/cu*/include")), reverse=True)
    candidates.append(os.path.join(base, "nvidia/cuda_runtime/include"))

for folder in candidates:
    if all(os.path.isfile(os.path.join(folder, name)) for name in ("cuda.h", "cudaTypedefs.h")):
        print(folder)
        sys.exit(0)
sys.exit("cuda.h and cudaTypedefs.h were not found; install a CUDA toolkit or `pip install nvidia-cuda-runtime`, "
         "or name their folder with -Ddriver_headers=FOLDER")
