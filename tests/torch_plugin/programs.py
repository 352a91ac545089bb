# SPDX-License-Identifier: Apache-2.0
"""Runs small programs to their very end, each in a process of its own that has imported torch already.

A fork of a process that imported torch, and has opened no driver, is as good as a fresh interpreter and ready at
once: it runs the program as __main__ and then goes through the interpreter's whole exit.
"""
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

_NURSERY = r"""
import faulthandler, gc, os, signal, sys, threading, time
import torch, torch.utils.data
parameter = torch.nn.Parameter(torch.ones(1))
parameter.grad = torch.ones(1)
torch.optim.AdamW([parameter]).step()  # brings in what PyTorch imports late
del parameter
gc.collect()
gc.freeze()  # the exit collects what the program made; what PyTorch made takes two seconds and tells nothing
for line in sys.stdin:
    program, told = line.rstrip("\n").split("\t")
    pid = os.fork()
    if pid == 0:
        break
    print(pid, os.waitpid(pid, 0)[1], flush=True)
else:
    os._exit(0)
output = os.open(told, os.O_WRONLY | os.O_CREAT)
os.dup2(output, 2)
os.dup2(os.open(os.devnull, os.O_RDWR), 1)
os.dup2(1, 0)
del output, told, pid, line
faulthandler.register(signal.SIGALRM, chain=True)  # its own watchdog thread does not bear a fork
signal.alarm(60)
exec(compile(open(program).read(), program, "exec"))
"""


# Triton's bindings report at exit what the nursery keeps from the collector: nothing of ours.
_TRITONS_OWN = re.compile(r"^(nanobind: | - (leaked|\.\.\.) |See https://nanobind).*\n?", re.MULTILINE)


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    status: int  #: its exit status; minus the signal's number where one ended it
    stderr: str


class Programs:
    """Programs that run one after another. `close` ends the process that they are forked from."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._nursery = subprocess.Popen([sys.executable, "-c", _NURSERY], text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, text: str) -> Ended:
        """Runs the text as a program and waits for its end; one that hangs ends after 60 s with a traceback."""
        program, told = (os.path.join(self._folder.name, name) for name in ("program.py", "stderr"))
        with open(program, "w") as file:
            file.write(text)
        open(told, "w").close()
        print(f"{program}\t{told}", file=self._nursery.stdin, flush=True)
        _, status = self._nursery.stdout.readline().split()
        with open(told) as file:
            return Ended(os.waitstatus_to_exitcode(int(status)), _TRITONS_OWN.sub("", file.read()))

    def close(self) -> int:
        """Ends the nursery and answers its exit status."""
        self._nursery.stdin.close()
        try:
            return self._nursery.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._nursery.send_signal(signal.SIGKILL)
            raise
