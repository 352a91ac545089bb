# SPDX-License-Identifier: Apache-2.0
"""The build folders: one for everyday use, one for measuring, one for each sanitizer."""
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field

import tools
from machine import ROOT

EXTRAS_OFF = [f"-D{name}=disabled" for name in ("nccl", "torch", "device_code", "benchmarks", "tools")]
# Lean: first-level optimisation, line numbers only, and nothing built that the sanitized suites do not run.
SANITIZER = ["-Dbuildtype=plain", "-Doptimization=1", "-Ddebug=false", "-Db_lundef=false", *EXTRAS_OFF,
             "-Dcpp_args=-g1 -fno-omit-frame-pointer"]


@dataclass(frozen=True)
class Build:
    folder: str
    options: list = field(default_factory=list)
    environment: dict = field(default_factory=dict)
    fixed_addresses: bool = False
    patience: int = 1  # multiplies the time that a test may take

    def launcher(self):
        """What stands before a command that runs tests. The thread sanitizer dies at once where a kernel spreads
        mappings wider than it knows; without randomisation they lie where it looks for them."""
        fixed = ["setarch", platform.machine(), "--addr-no-randomize"]
        if self.fixed_addresses and subprocess.run([*fixed, "true"], capture_output=True).returncode == 0:
            return fixed
        return []


PLAIN = Build("build")
MEASURE = Build("build-release", ["-Dbuildtype=release", "-Dtests=disabled", "-Dbenchmarks=enabled"])
SANITIZED = {
    "address": Build("build-address", [*SANITIZER, "-Db_sanitize=address,undefined"], {
        "ASAN_OPTIONS": "abort_on_error=0:detect_leaks=1:protect_shadow_gap=0",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }, patience=4),
    "thread": Build("build-thread", [*SANITIZER, "-Db_sanitize=thread"], {
        "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
    }, fixed_addresses=True, patience=6),
}


def _run(command, env):
    result = subprocess.run(command, cwd=ROOT, env=env)
    if result.returncode != 0:
        sys.exit(result.returncode)


def configure(build, probe_again=False):
    env = tools.environment()
    if not (ROOT / build.folder / "build.ninja").exists():
        _run([tools.meson(), "setup", build.folder, *build.options], env)
    elif probe_again:
        _run([tools.meson(), "setup", "--reconfigure", "--clearcache", build.folder], env)


def compile_targets(build, targets=()):
    _run([tools.ninja(), "-C", build.folder, *targets], tools.environment())


def environment_of(build):
    """The environment to run programs of a build in; what the caller set stands."""
    return {**tools.environment(), **{name: os.environ.get(name, value) for name, value in build.environment.items()}}
