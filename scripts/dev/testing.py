# SPDX-License-Identifier: Apache-2.0
"""Runs suites through Meson and counts what its own log of the run says."""
import json
import re
import subprocess
from dataclasses import dataclass

import builds
import tools
from machine import ROOT, say

SANITIZED_SUITES = ("unit", "model")
PASSED = {"OK", "EXPECTEDFAIL"}
SKIPPED = {"SKIP", "IGNORED"}


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, result):
        if result in PASSED:
            self.passed += 1
        elif result in SKIPPED:
            self.skipped += 1
        else:
            self.failed += 1

    def good(self):
        """Nothing failed, and there was something to run."""
        return self.failed == 0 and self.passed + self.skipped > 0

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def suites_in_tree():
    """The suites that tests of this tree name; a build folder may lack some."""
    recipes = sorted((ROOT / "tests").rglob("meson.build"))
    named = [part for recipe in recipes for part in re.findall(r"suite: *(\[[^]]*\]|'\w+')", recipe.read_text())]
    return sorted({name for part in named for name in re.findall(r"\w+", part)})


def known_suites(build):
    """The suites that a build folder has, and how many tests each."""
    found = subprocess.run([tools.meson(), "introspect", "--tests", build.folder], cwd=ROOT, capture_output=True,
                           text=True, check=True)
    suites = {}
    for test in json.loads(found.stdout):
        for suite in test["suite"]:
            name = suite.split(":")[-1]
            suites[name] = suites.get(name, 0) + 1
    return suites


def run(build, suites, tally):
    """Runs the suites (none named: all) and adds their results to the tally."""
    log = ROOT / build.folder / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    command = [*build.launcher(), tools.meson(), "test", "-C", build.folder, "--no-rebuild", "--print-errorlogs",
               "--timeout-multiplier", str(build.patience)]
    command += [part for suite in suites for part in ("--suite", suite)]
    done = subprocess.run(command, cwd=ROOT, env=builds.environment_of(build))
    before = tally.failed
    if log.exists():
        for line in log.read_text().splitlines():
            tally.add(json.loads(line)["result"])
    if done.returncode != 0 and tally.failed == before:
        say(f"meson test ended with {done.returncode} though no test failed: counted as one failure")
        tally.failed += 1


def run_sanitized(name, tally, probe_again=False):
    build = builds.SANITIZED[name]
    say(f"suites {' and '.join(SANITIZED_SUITES)} under the {name} sanitizer, in {build.folder}/")
    builds.configure(build, probe_again)
    builds.compile_targets(build)
    suites = [suite for suite in SANITIZED_SUITES if suite in known_suites(build)]
    if suites:
        run(build, suites, tally)
