# SPDX-License-Identifier: Apache-2.0
"""No file that people write is longer than 500 lines, the root's meson.build not longer than 120; no line of Python is
longer than 120 columns."""
import sys
from pathlib import Path

import tree

LIMIT = 500
ROOT_BUILD_LIMIT = 120
README_LIMIT = 60
COLUMNS = 120  # of Python; clang-format sees to the rest


def faults(root):
    found = []
    extra = [root / "README.md"] if (root / "README.md").exists() else []
    for file in tree.written_by_hand(root) + extra:
        path = tree.relative(root, file)
        limit = {"meson.build": ROOT_BUILD_LIMIT, "README.md": README_LIMIT}.get(path, LIMIT)
        lines = tree.read(file).splitlines()
        if len(lines) > limit:
            found.append(f"{path}: {len(lines)} lines, at most {limit}: split it at a seam that has a name")
        if file.suffix == ".py":
            found += [f"{path}:{number}: {len(line)} columns, at most {COLUMNS}"
                      for number, line in enumerate(lines, 1) if len(line) > COLUMNS]
    return found


if __name__ == "__main__":
    tree.report(faults(Path(sys.argv[1]).resolve()))
