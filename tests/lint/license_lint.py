# SPDX-License-Identifier: Apache-2.0
"""Each source, script and build file opens with the licence line (after the line that names its interpreter)."""
import re
import sys
from pathlib import Path

import tree

LINE = re.compile(r"^(//|#|/\*) ?SPDX-License-Identifier: Apache-2\.0( \*/)?$")


def faults(root):
    found = []
    for file in tree.written_by_hand(root):
        lines = tree.read(file).splitlines()
        first = lines[1:2] if lines and lines[0].startswith("#!") else lines[:1]
        if not first or not LINE.match(first[0]):
            found.append(f"{tree.relative(root, file)}: the first line is not the SPDX line for Apache-2.0")
    return found


if __name__ == "__main__":
    tree.report(faults(Path(sys.argv[1]).resolve()))
