# SPDX-License-Identifier: Apache-2.0
"""Every C++ and C snippet of the documents compiles, as the oldest language that the headers promise.

usage: snippets_lint.py SOURCE_ROOT C_COMPILER CPP_COMPILER"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import names_lint
import tree

SNIPPET = re.compile(r"^```(cpp|c)\n(.*?)^```", re.MULTILINE | re.DOTALL)
STRICT = ["-fsyntax-only", "-pedantic-errors", "-Wall", "-Werror", "-Wno-unused-variable"]
STANDARD = {"cpp": "-std=c++17", "c": "-std=c99"}


def snippets(root):
    """Document, line, language and text of each."""
    for document in names_lint.documents(root):
        text = tree.read(document)
        for match in SNIPPET.finditer(text):
            yield document, text.count("\n", 0, match.start()) + 2, match.group(1), match.group(2)


def program(text):
    """A whole program is taken as it is; of a part, what is no include stands in a function, its lines in place."""
    if re.search(r"\bint main\(", text):
        return text
    lines = text.splitlines()
    last = max((at for at, line in enumerate(lines) if line.startswith("#include")), default=-1)
    head, body = lines[:last + 1], lines[last + 1:]
    return "\n".join([*head, f"int main(void) {{\n#line {last + 2}", *body, "return 0; }", ""])


def faults(root, compilers):
    found = []
    with tempfile.TemporaryDirectory() as folder:
        # As installed: <stillwake/stillwake.h> beside the folders of the ladder.
        (Path(folder) / "stillwake").symlink_to(root / "shard")
        for document, line, language, text in snippets(root):
            command = [*compilers[language], STANDARD[language], *STRICT, f"-I{folder}", f"-I{root}",
                       "-x", "c++" if language == "cpp" else "c", "-"]
            done = subprocess.run(command, input=program(text), capture_output=True, text=True)
            if done.returncode != 0:
                found.append(f"{tree.relative(root, document)}:{line}: the snippet does not compile\n{done.stderr}")
    return found


if __name__ == "__main__":
    tree.report(faults(Path(sys.argv[1]).resolve(), {"c": sys.argv[2].split(), "cpp": sys.argv[3].split()}))
