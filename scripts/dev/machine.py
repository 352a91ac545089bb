# SPDX-License-Identifier: Apache-2.0
"""What the machine must have: probed by the header or the program itself, installed by apt when missing."""
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / ".cache"
REFUSED = CACHE / "could-not-install"
# `./dev --offline` and this variable: install nothing, ask no network.
OFFLINE = "STILLWAKE_DEV_OFFLINE"


def say(text):
    print(f"dev: {text}", flush=True)


def die(text):
    say(text)
    sys.exit(1)


def offline():
    return os.environ.get(OFFLINE, "") not in ("", "0")


@dataclass(frozen=True)
class Need:
    package: str
    why: str
    program: str = ""
    header: str = ""
    module: str = ""
    python_header: str = ""


REQUIRED = (
    Need("g++", "compiles everything", program="g++"),
    Need("libexpected-dev", "tl::expected, the Result type", header="tl/expected.hpp"),
    Need("libfmt-dev", "sentences with figures", header="fmt/format.h"),
)
TOOLS = (
    Need("libcli11-dev", "options of the examples", header="CLI/CLI.hpp"),
    Need("nlohmann-json3-dev", "the header of a .safetensors file", header="nlohmann/json.hpp"),
)
TESTS = (Need("libgtest-dev", "the test programs", header="gtest/gtest.h"),)
BENCHMARKS = (Need("libbenchmark-dev", "the benchmark programs", header="benchmark/benchmark.h"),)
# Without these the same commands work and say what they left out.
HELPFUL = (
    Need("pkg-config", "finds libraries", program="pkg-config"),
    Need("libnuma-dev", "host memory next to its device", header="numa.h"),
)
CHECKS = (
    Need("clang-tidy-14", "suite tidy", program="clang-tidy-14"),
    Need("cmake", "the test of the CMake package", program="cmake"),
    Need("ccache", "builds that share their objects", program="ccache"),
)
VENV = Need("python3-venv", "the virtual environment for meson and ninja", module="ensurepip")


def _headers_present(headers):
    """One run of the preprocessor answers for all headers."""
    source = "".join(f"#if __has_include(<{h}>)\nstillwake_has {h}\n#endif\n" for h in headers)
    found = subprocess.run(["g++", "-E", "-P", "-x", "c++", "-"], input=source, capture_output=True, text=True)
    if found.returncode != 0:
        die(f"g++ is there and does not work: {found.stderr.strip()}")
    return {line.split()[1] for line in found.stdout.splitlines() if line.startswith("stillwake_has ")}


def missing(needs):
    have_compiler = shutil.which("g++") is not None
    headers = [need.header for need in needs if need.header]
    present = _headers_present(headers) if have_compiler and headers else set()

    def there(need):
        if need.program:
            return shutil.which(need.program) is not None
        if need.header:
            return need.header in present
        if need.python_header:
            return (Path(sysconfig.get_path("include")) / need.python_header).exists()
        return subprocess.run([sys.executable, "-c", f"import {need.module}"], capture_output=True).returncode == 0

    return [need for need in needs if not there(need)]


def _rights():
    """The prefix that makes a command run as root, or None where nobody lets us."""
    if offline():
        return None
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n"]
    if shutil.which("sudo") and sys.stdin.isatty():
        return ["sudo"]
    return None


def _apt(needs):
    for need in needs:
        say(f"installing {need.package}: {need.why}")
    environment = [*_rights(), "env", "DEBIAN_FRONTEND=noninteractive"]
    quiet = ["-qq", "-o=Dpkg::Use-Pty=0", "-o=Acquire::Retries=2", "-o=Acquire::http::Timeout=20"]
    subprocess.run([*environment, "apt-get", *quiet, "update"], stdin=subprocess.DEVNULL)
    command = [*environment, "apt-get", *quiet, "install", "-y", "--no-install-recommends"]
    command += [need.package for need in needs]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    if done.returncode != 0:
        print("\n".join(done.stdout.splitlines()[-5:]))


def ensure(required, optional=()):
    """Installs what is missing. A required package that cannot be had ends the command, with its name; an optional
    one is tried once in this tree and then done without. Answers whether something was installed."""
    refused = set(REFUSED.read_text().split()) if REFUSED.exists() else set()
    lacking = missing([*required, *optional])
    wanted = [need for need in lacking if need in required or need.package not in refused]
    if not wanted:
        return False
    tried = _rights() is not None
    if tried:
        _apt(wanted)
    # Headers of a compiler that was only just installed could not be seen before: look at all of them again.
    still = missing([*required, *optional])
    hard = [need for need in still if need in required]
    if hard:
        names = ", ".join(f"{need.package} ({need.why})" for need in hard)
        reason = "apt-get could not install it" if tried else \
            "--offline forbids installing" if offline() else "there are no rights to install it here"
        die(f"missing: {names}; {reason}. As root: apt-get install {' '.join(need.package for need in hard)}")
    if still:
        say("going on without " + ", ".join(f"{need.package} ({need.why})" for need in still))
        if tried:
            CACHE.mkdir(exist_ok=True)
            REFUSED.write_text("\n".join(sorted(refused | {need.package for need in still})) + "\n")
    return len(still) < len(lacking)
