# SPDX-License-Identifier: Apache-2.0
"""The files of the tree that the lint scripts read, and how they report."""
import os
import re
import sys
from pathlib import Path

PASSED_OVER = re.compile(r"^(build.*|subprojects|shared|__pycache__|\.(?!ci$).*)$")
CODE = {".h", ".hpp", ".c", ".cpp", ".cu", ".cuh"}
SCRIPTS = {".py", ".sh", ".in"}
NAMED = {"meson.build", "meson_options.txt", "dev", "run", "requirements.txt"}
DOTTED = {".clang-format", ".clang-tidy", ".editorconfig", ".gitignore"}


def files(root):
    """Every file of the tree, without build folders and what begins with a dot (.ci and our dotted files stay)."""
    found = []
    for folder, names, entries in os.walk(root):
        names[:] = sorted(name for name in names if not PASSED_OVER.match(name))
        for entry in sorted(entries):
            if not entry.startswith(".") or (entry in DOTTED and Path(folder) == Path(root)):
                found.append(Path(folder) / entry)
    return found


def code(root):
    return [path for path in files(root) if path.suffix in CODE]


def written_by_hand(root):
    """Code, scripts and build files: what carries a licence line and a length."""
    return [path for path in files(root)
            if path.suffix in CODE | SCRIPTS or path.name in NAMED or path.name in DOTTED]


def read(path):
    return path.read_text(encoding="utf-8", errors="replace")


def relative(root, path):
    return path.relative_to(root).as_posix()


def without_comments(text):
    """Blanks comments of C and C++, and keeps line numbers. String literals stay."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.DOTALL)
    return pattern.sub(lambda match: match.group(1) or re.sub(r"[^\n]", " ", match.group(0)), text)


def report(faults):
    """Prints the faults, one a line, and ends the script: 1 when there are any."""
    for fault in faults:
        print(fault)
    print(f"{len(faults)} fault{'' if len(faults) == 1 else 's'}")
    sys.exit(1 if faults else 0)
