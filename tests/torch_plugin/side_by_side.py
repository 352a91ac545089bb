# SPDX-License-Identifier: Apache-2.0
"""Runs functions in threads beside each other."""
import threading


def run_all(bodies):
    """Runs each body in a thread, waits for all, and raises the first error that one raised."""
    errors = []

    def run(body):
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
