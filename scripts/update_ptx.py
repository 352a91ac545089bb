# SPDX-License-Identifier: Apache-2.0
"""Renews the PTX kept in the tree from the device code, or with --check tells whether it is what the source gives.

    update_ptx.py [--check] [--nvcc PATH]

The kept PTX says in its first lines which compiler made it; --check compares only with the same version (exit 77
otherwise, 1 on a difference). The PTX is written in an older version of its language than the compiler's newest, so
that older drivers take it too; ptxas, when it is there, confirms that this is enough.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "allocator/transfer/page_kernels.cu"
KEPT = ROOT / "allocator/transfer/page_kernels.ptx"
ARCHITECTURE = "compute_75"
PTX_VERSION = "7.0"  # drivers from CUDA 11.0 on
SKIP = 77


def find_nvcc(given: str | None) -> str | None:
    if given:
        return given
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def version_of(nvcc: str) -> str:
    output = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    return re.search(r"release [\d.]+, V([\d.]+)", output).group(1)


def compile_ptx(nvcc: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "page_kernels.ptx"
        command = [nvcc, "-ptx", "-O3", "-std=c++20", f"-arch={ARCHITECTURE}", f"-I{ROOT}", "-o", out, SOURCE]
        subprocess.run(command, check=True)
        body = without_comments(out.read_text())
        body = re.sub(r"(?m)^\.version .*$", f".version {PTX_VERSION}", body, count=1)
        kept = (f"// SPDX-License-Identifier: Apache-2.0\n// Made by scripts/update_ptx.py from page_kernels.cu "
                f"with nvcc {version_of(nvcc)}. Do not edit.\n{body}")
        ptxas = shutil.which("ptxas") or shutil.which(str(pathlib.Path(nvcc).with_name("ptxas")))
        if ptxas:
            out.write_text(kept)
            architecture = ARCHITECTURE.replace("compute", "sm")
            subprocess.run([ptxas, f"-arch={architecture}", "-o", "/dev/null", out], check=True)
        return kept


def without_comments(ptx: str) -> str:
    lines = (line.split("//")[0].rstrip() for line in ptx.splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--nvcc")
    options = parser.parse_args()
    nvcc = find_nvcc(options.nvcc)
    if nvcc is None:
        print("no nvcc on this machine")
        return SKIP if options.check else 1
    if not options.check:
        KEPT.write_text(compile_ptx(nvcc))
        print(f"wrote {KEPT.relative_to(ROOT)}")
        return 0
    kept = KEPT.read_text()
    made_by = re.search(r"with nvcc ([\d.]+)\.", kept).group(1)
    if made_by != version_of(nvcc):
        print(f"the kept PTX was made by nvcc {made_by}, this is {version_of(nvcc)}: not compared")
        return SKIP
    if compile_ptx(nvcc) != kept:
        print(f"{KEPT.relative_to(ROOT)} is not what {SOURCE.name} gives: run scripts/update_ptx.py")
        return 1
    print("the kept PTX is what the source gives")
    return 0


if __name__ == "__main__":
    sys.exit(main())
