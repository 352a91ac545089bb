# SPDX-License-Identifier: Apache-2.0
"""What importing stillwake costs beside importing torch alone: median of several fresh interpreters.

    python benchmarks/torch_import.py [--runs 7] [--json FILE]

It must be at most 100 ms. Each run times both, so that a busy machine slows both alike."""
import argparse
import json
import statistics
import subprocess
import sys

MUST_REACH = 0.100  # seconds

PROGRAM = """
import time
began = time.perf_counter()
import torch
between = time.perf_counter()
import stillwake
print(between - began, time.perf_counter() - between)
"""


def measure(runs: int) -> dict[str, float]:
    """Seconds that the two imports take; the first run fills the page cache and does not count."""
    told = [[float(part) for part in subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True,
                                                    text=True).stdout.split()] for _ in range(runs + 1)][1:]
    return {"import torch": statistics.median(run[0] for run in told),
            "import stillwake after it": statistics.median(run[1] for run in told)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", help="writes the figures there")
    arguments = parser.parse_args()
    figures = measure(arguments.runs)
    for name, seconds in figures.items():
        print(f"{name:<28} {seconds * 1000:8.1f} ms")
    reached = figures["import stillwake after it"] <= MUST_REACH
    print(f"must reach {MUST_REACH * 1000:.0f} ms: {'yes' if reached else 'no'}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"seconds": figures, "must_reach": MUST_REACH}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
