# SPDX-License-Identifier: Apache-2.0
"""What `./dev test` says about suites is what Meson has registered."""
import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
TESTS = json.loads((Path(sys.argv.pop()) / "meson-info/intro-tests.json").read_text())
SUITES = {suite.split(":")[-1] for test in TESTS for suite in test["suite"]}


def dev(*words):
    command = [sys.executable, "-B", str(TOP / "scripts/dev"), "--offline", *words]
    return subprocess.run(command, capture_output=True, text=True)


class Suites(unittest.TestCase):
    def test_help_lists_every_suite_and_no_other(self):
        told = dev("test", "--help")
        self.assertEqual(told.returncode, 0, told.stderr)
        listed = re.search(r"\[\{([\w,]+)\}\]", "".join(told.stdout.split())).group(1)
        suites = set(listed.split(","))
        self.assertLessEqual(SUITES, suites)
        if "unit" in SUITES:  # with GoogleTest every suite is registered, but for those that need torch
            self.assertLessEqual(suites - SUITES, {"python", "gpu_python"})

    def test_an_unknown_suite_is_an_error_that_lists_the_right_ones(self):
        refused = dev("test", "unti")
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertIn("'unti'", refused.stderr)
        for suite in SUITES:
            self.assertIn(f"'{suite}'", refused.stderr)


if __name__ == "__main__":
    unittest.main()
