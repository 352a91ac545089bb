# SPDX-License-Identifier: Apache-2.0
"""The documents: every Python block runs as it stands, and the reference says what the docstrings say."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCUMENTS = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
             if BLOCK.search(path.read_text())]


def test_there_are_blocks_to_run():
    assert ROOT / "docs/pytorch/quick-start.md" in DOCUMENTS


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run_one_after_the_other(document, tmp_path):
    program = "\n".join(BLOCK.findall(document.read_text())).replace("/tmp/", f"{tmp_path}/")
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_reference_is_made_from_the_docstrings():
    done = subprocess.run([sys.executable, str(ROOT / "scripts/python_reference.py"), str(ROOT), "--check"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_example_in_its_own_docstring_names_what_exists():
    import stillwake as sw

    for name in re.findall(r"\bsw\.(\w+)", sw.__doc__):
        assert name in sw.__all__, name
