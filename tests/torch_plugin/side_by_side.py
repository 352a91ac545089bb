# SPDX-License-Identifier: Apache-2.0
"""Runs functions in threads beside each other, or beside a block."""
import threading
from contextlib import contextmanager


@contextmanager
def beside(*bodies):
    """Runs each body in a thread until the block ends: it is given an event to look at. Raises the first error that one
    raised."""
    stop, errors = threading.Event(), []

    def run(body):
        try:
            body(stop)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def run_all(bodies):
    """Runs each body in a thread, waits for all, and raises the first error that one raised."""
    with beside(*(lambda _, body=body: body() for body in bodies)):
        pass
