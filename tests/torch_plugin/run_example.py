# SPDX-License-Identifier: Apache-2.0
"""Runs a Python example and looks at what it says: ends with 0 and "pointers changed: 0 of N", or with 77 unrun.

usage: run_example.py EXAMPLE [--ranks N] [--needs FILE]... [ARGUMENT...]

Without a file that it needs (weights that could not be fetched) it ends with 77, too."""
import re
import socket
import subprocess
import sys
from pathlib import Path


def main():
    example, *arguments = sys.argv[1:]
    command = [sys.executable]
    if arguments[:1] == ["--ranks"]:
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        command += ["-m", "torch.distributed.run", "--nproc-per-node", arguments[1], "--master-port", str(port)]
        arguments = arguments[2:]
    while arguments[:1] == ["--needs"]:
        if not Path(arguments[1]).is_file():
            print(f"skipped: {arguments[1]} is missing")
            return 77
        arguments = arguments[2:]
    done = subprocess.run([*command, example, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout)
    if done.returncode != 0:
        return done.returncode
    told = re.search(r"^pointers changed: 0 of (\d+)$", done.stdout, re.MULTILINE)
    return 0 if told and int(told.group(1)) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
