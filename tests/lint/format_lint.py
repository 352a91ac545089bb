# SPDX-License-Identifier: Apache-2.0
"""Every source is as clang-format 14 writes it; `--fix` writes it so. Other versions write differently: skipped."""
import shutil
import subprocess
import sys
from pathlib import Path

import tree

MAJOR = "14"
SKIPPED = 77


def clang_format(root):
    """The program of that version in .venv or on the machine, or None."""
    for candidate in (root / ".venv/bin/clang-format", shutil.which("clang-format"), shutil.which("clang-format-14")):
        if candidate and Path(candidate).exists():
            version = subprocess.run([candidate, "--version"], capture_output=True, text=True).stdout
            if f"version {MAJOR}." in version:
                return str(candidate)
    return None


def badly_formatted(program, paths, fix=False):
    """The complaints of clang-format, as it prints them."""
    if not paths:
        return ""
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    done = subprocess.run([program, "--style=file", *mode, *map(str, paths)], stderr=subprocess.PIPE, text=True)
    return done.stderr or ("clang-format failed" if done.returncode else "")


if __name__ == "__main__":
    top = Path(sys.argv[1]).resolve()
    tool = clang_format(top)
    if tool is None:
        print(f"skipped: there is no clang-format {MAJOR}")
        sys.exit(SKIPPED)
    complaints = badly_formatted(tool, tree.code(top), fix="--fix" in sys.argv[2:])
    print(complaints or "0 faults")
    sys.exit(1 if complaints else 0)
