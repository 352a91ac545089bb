# SPDX-License-Identifier: Apache-2.0
"""PyTorch for the Python side: the machine's own where it has one, else pinned packages from PyPI in .venv."""
import os
import shutil
import subprocess
import sys

import machine
import tools
from machine import ROOT, Need, say

TORCH, FOR_THE_PACKAGE = (ROOT / f"scripts/requirements-{name}.txt" for name in ("torch", "package"))
VENV_PYTHON = ROOT / ".venv/bin/python3"
HEADERS = Need("python3-dev", "the headers of Python, for the extension module", python_header="Python.h")
ROOM_GIB = 12  # the packages take 4.7 GiB, their archives half of that again while they are unpacked


def python():
    """The interpreter that the package is built for and run by."""
    return str(VENV_PYTHON) if VENV_PYTHON.exists() else sys.executable


def _has(python, *modules):
    wanted = "; ".join(f"assert importlib.util.find_spec({name!r})" for name in modules)
    return subprocess.run([python, "-c", f"import importlib.util; {wanted}"], capture_output=True).returncode == 0


def usable():
    probe = subprocess.run([python(), "-B", str(ROOT / "scripts/find_torch.py")], capture_output=True)
    return probe.returncode == 0


def _reason_against():
    if sys.version_info < (3, 10):
        return f"torch needs Python 3.10, this is {sys.version_info.major}.{sys.version_info.minor}"
    free = shutil.disk_usage(ROOT).free / 2**30
    if free < ROOM_GIB:
        return f"torch needs {ROOM_GIB} GiB of disk while it is installed, {free:.0f} are free"
    if machine.offline():
        return "--offline forbids fetching"
    return None


def package_environment(build, env):
    """The environment in which the package of a build folder can be imported."""
    own = str(ROOT / build.folder / "torch_plugin/python")
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, [own, env.get("PYTHONPATH", "")]))}


def ensure():
    """Makes sure of torch and pytest where that can be. Answers whether something was installed."""
    installed = machine.ensure((), (HEADERS,))
    if usable() and _has(python(), "pytest", "numpy", "mesonpy", "safetensors", "tokenizers"):
        return installed
    against = _reason_against()
    if against:
        say(f"going on without PyTorch and its side of Stillwake: {against}")
        return installed
    tools.make_venv()
    lists = [FOR_THE_PACKAGE]
    if usable():  # the machine's own: keep it
        say("installing pytest and what else the package's tests need, beside the machine's own torch")
    else:
        say("installing torch from PyPI into .venv (4.7 GiB, a few minutes): the PyTorch side of Stillwake")
        lists.append(TORCH)
    packages = [line for path in lists for line in path.read_text().splitlines() if "==" in line]
    command = [python(), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, *packages], stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        say("going on without PyTorch and its side of Stillwake: it could not be installed from PyPI")
        return installed
    return True
