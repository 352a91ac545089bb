# SPDX-License-Identifier: Apache-2.0
"""The Python tools: those of .venv, else those of the machine when new enough, else pinned ones from PyPI in .venv."""
import os
import re
import shutil
import subprocess
import sys

import machine
from machine import ROOT, die, say

sys.path.append(str(ROOT / "tests" / "lint"))
import format_lint  # noqa: E402  (the check knows which clang-format it needs)

VENV_BIN = ROOT / ".venv" / "bin"
PINS = dict(line.split("==") for line in (ROOT / "scripts/requirements.txt").read_text().split() if "==" in line)
MESON_AT_LEAST = (1, 0, 1)


def _version(program):
    try:
        text = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    except OSError:
        return ()
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in found.groups()) if found else ()


def find(name, accept):
    """The program of .venv or of the machine whose version is accepted, or None."""
    for candidate in (VENV_BIN / name, shutil.which(name)):
        if candidate and os.path.exists(candidate) and accept(_version(str(candidate))):
            return str(candidate)
    return None


def meson():
    return find("meson", lambda version: version >= MESON_AT_LEAST)


def ninja():
    return find("ninja", lambda version: version >= (1, 8, 2))


def clang_format():
    return format_lint.clang_format(ROOT)


def driver_headers_found():
    probe = [sys.executable, "-B", str(ROOT / "scripts/find_driver_headers.py")]
    return subprocess.run(probe, capture_output=True).returncode == 0


def make_venv():
    if not (VENV_BIN / "python3").exists():
        machine.ensure((machine.VENV,))
        say("making .venv for the Python tools")
        # What the machine has is seen from inside: its torch is used instead of another.
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", str(ROOT / ".venv")], check=True)


def _pip_install(names):
    """Installs pinned packages into .venv, making it first. Answers whether that worked."""
    if machine.offline():
        return False
    make_venv()
    packages = [f"{name}=={PINS[name]}" for name in names]
    say(f"installing {', '.join(packages)} into .venv")
    command = [str(VENV_BIN / "python3"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    return subprocess.run([*command, *packages], stdin=subprocess.DEVNULL).returncode == 0


def ensure(with_format=False):
    """Makes sure of meson, ninja and the driver's headers. Answers whether something was installed."""
    lacking = [name for name, there in (("meson", meson), ("ninja", ninja)) if there() is None]
    if not driver_headers_found():
        lacking.append("nvidia-cuda-runtime")
    installed = bool(lacking) and _pip_install(lacking)
    if lacking and not installed:
        die(f"missing: {', '.join(lacking)}; could not be installed from PyPI into .venv")
    if with_format and clang_format() is None and not _pip_install(["clang-format"]):
        say(f"going on without clang-format {format_lint.MAJOR} (the check of the format)")
    return installed


def environment():
    """The environment of every build and test: our tools first, objects shared between build folders."""
    env = dict(os.environ)
    if VENV_BIN.exists():
        env["PATH"] = f"{VENV_BIN}{os.pathsep}{env['PATH']}"
    env["NINJA"] = ninja() or ""
    env.setdefault("CCACHE_BASEDIR", str(ROOT))
    env.setdefault("CCACHE_NOHASHDIR", "1")
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    return env
