# SPDX-License-Identifier: Apache-2.0
"""clang-tidy 14 over allocator/ and shard/ with the compile commands of a build folder: the set is kept clean."""
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SKIPPED = 77
MAJOR = "14"
OURS = re.compile(r"^(allocator|shard)/.*\.(cpp|c)$")


def clang_tidy():
    for candidate in (shutil.which("clang-tidy-14"), shutil.which("clang-tidy")):
        if candidate:
            version = subprocess.run([candidate, "--version"], capture_output=True, text=True).stdout
            if f"version {MAJOR}." in version:
                return candidate
    return None


def sources(root, build):
    commands = json.loads((build / "compile_commands.json").read_text())
    paths = {Path(os.path.normpath(Path(entry["directory"]) / entry["file"])) for entry in commands}
    inside = (path for path in paths if path.is_relative_to(root))
    return sorted(path for path in inside if OURS.search(path.relative_to(root).as_posix()))


def check(program, root, build, path):
    """The complaints about one file, "" when it is clean."""
    command = [program, "--quiet", "-p", str(build), f"--config-file={root / '.clang-tidy'}",
               f"--header-filter=^({re.escape(str(root))}/)?(\\.\\./)?(allocator|shard)/", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ""


def faults(program, root, build):
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        answers = pool.map(lambda path: check(program, root, build, path), sources(root, build))
    return [answer for answer in answers if answer]


if __name__ == "__main__":
    top, folder = (Path(argument).resolve() for argument in sys.argv[1:3])
    tool = clang_tidy()
    if tool is None:
        print(f"skipped: there is no clang-tidy {MAJOR}")
        sys.exit(SKIPPED)
    found = faults(tool, top, folder)
    print("\n".join(found) or f"0 faults in {len(sources(top, folder))} sources")
    sys.exit(1 if found else 0)
