# SPDX-License-Identifier: Apache-2.0
"""One pair of processes over gloo for all tests of a file: a test sends both the same function and gets
both answers."""
import datetime
import faulthandler
import gc
import shutil
import tempfile
import traceback

import places
import process_facts
import torch
import torch.distributed as dist
from torch import multiprocessing

TIMEOUT = 30  # seconds until what has not ended hangs


def join(rank, count, folder):
    """Makes this process a rank of a group over gloo, and over NCCL where each rank has a GPU of its own."""
    if places.GPUS:
        torch.cuda.set_device(rank)
        places.be_deterministic()
    dist.init_process_group("cpu:gloo,cuda:nccl" if places.GPUS else "gloo", init_method=f"file://{folder}/store",
                            rank=rank, world_size=count, timeout=datetime.timedelta(seconds=TIMEOUT))


def leave():
    """Ends what `join` began. FSDP2's modules are cycles that hold the group; its threads must end before Python."""
    gc.collect()
    dist.destroy_process_group()


def _serve(rank, folder, pipe):
    faulthandler.enable()
    torch.set_num_threads(1)
    join(rank, 2, folder)
    while (asked := pipe.recv()) is not None:
        function, arguments, timeout = asked
        faulthandler.dump_traceback_later(timeout - 5)
        try:
            pipe.send((True, function(*arguments)))
        except BaseException:  # every way out of the function is for the test to see
            pipe.send((False, traceback.format_exc()))
        finally:
            faulthandler.cancel_dump_traceback_later()
    leave()


class OneRank:
    """This process as the only rank of a group."""

    def __init__(self):
        self._folder = tempfile.mkdtemp()
        join(0, 1, self._folder)

    def run(self, function, *arguments):
        return [function(*arguments)]

    def close(self):
        leave()
        shutil.rmtree(self._folder)


class TwoRanks:
    """Ranks 0 and 1 of a process group, each with a device of its own. A failure ends the pair; the next call
    starts a fresh one, because ranks that were torn apart cannot go on together."""

    def __init__(self):
        self._processes = []

    def _start(self):
        self._folder = tempfile.mkdtemp()
        context = multiprocessing.get_context("spawn")
        self._pipes, theirs = zip(*(context.Pipe() for _ in range(2)))
        self._processes = [context.Process(target=_serve, args=(rank, self._folder, theirs[rank]), daemon=True)
                           for rank in range(2)]
        for process in self._processes:
            process.start()

    def run(self, function, *arguments, timeout=3 * TIMEOUT):
        """What `function(*arguments)` returned on each rank; AssertionError with the traceback of each that raised."""
        if not self._processes:
            self._start()
        answers = []
        for pipe in self._pipes:
            pipe.send((function, arguments, timeout))
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(timeout):
                answers.append((False, f"rank {rank} did not end within {timeout} s"))
            else:
                try:
                    answers.append(pipe.recv())
                except EOFError:
                    self._processes[rank].join(TIMEOUT)
                    answers.append((False, f"rank {rank} ended with status {self._processes[rank].exitcode}"))
        failed = [f"rank {rank}: {text}" for rank, (well, text) in enumerate(answers) if not well]
        if failed:
            self.close(kill=True)
            error = AssertionError("\n".join(failed))
            error.answers = answers
            raise error
        return [answer for _, answer in answers]

    def close(self, kill=False):
        """Ends both and answers their exit statuses."""
        for process, pipe in zip(self._processes, self._pipes if self._processes else ()):
            if kill:
                process.kill()
            else:
                pipe.send(None)
        for process in self._processes:
            process.join(TIMEOUT)
        statuses = [process.exitcode for process in self._processes]
        if self._processes:
            shutil.rmtree(self._folder)
        self._processes = []
        return statuses


def mapped(addresses):
    """Those of the addresses that have memory of this process behind them, as the system's map of it tells."""
    return [address for address in addresses if process_facts.is_mapped(address, 1)]


def on_device(addresses):
    """Those of the addresses that have memory of the device behind them: the emulation's is memory of this process."""
    return [address for address in addresses if process_facts.has_device_memory(address)] if places.GPUS \
        else mapped(addresses)
