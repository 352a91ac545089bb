# SPDX-License-Identifier: Apache-2.0
"""Runs zero_pointer_wake on the emulated driver with files made here: a good one, and wrong ones and wrong options."""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = sys.argv.pop(1)
SHAPES = {
    "embeddings.word.weight": [700, 384],
    "encoder.layer.0.a.weight": [384, 384],
    "encoder.layer.0.a.bias": [384],
    "encoder.layer.1.a.weight": [1000, 1000],
    "encoder.layer.1.a.nothing": [0, 5],
    "pooler.scale": [],
}


def safetensors(shapes):
    """The bytes of a file of F32 tensors with random content."""
    header, data, at = {"__metadata__": {"format": "test"}}, b"", 0
    for name, shape in shapes.items():
        size = 4
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        data += random.Random(name).randbytes(size)
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data, at


class ZeroPointerWake(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        content, self.bytes = safetensors(SHAPES)
        self.good = self.write("good.safetensors", content)
        self.content = content

    def write(self, name, content):
        path = Path(self.folder.name) / name
        path.write_bytes(content)
        return str(path)

    def run_it(self, *arguments, **environment):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STILLWAKE_")}
        clean.update(environment)
        return subprocess.run([PROGRAM, *arguments], env=clean, capture_output=True, text=True, timeout=60)

    def expect_refused(self, done, status, part):
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(part, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_nothing_changes(self):
        done = self.run_it("--weights", self.good, "--emulated", "--cycles", "2", "--copies", "3", "--change",
                           "--prepare", "--pinning-threads", "2")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("driver: emulated driver", done.stdout)
        self.assertEqual(done.stdout.count(f"pointers changed 0 of {3 * len(SHAPES)}\n"), 2)
        self.assertEqual(done.stdout.count(f"bytes different 0 of {3 * self.bytes}\n"), 2)
        self.assertEqual(done.stdout.count("a neighbour took"), 2)
        for name in SHAPES:
            self.assertIn(name, done.stdout)

    def test_the_environment_chooses_the_driver(self):
        done = self.run_it("--weights", self.good, STILLWAKE_DRIVER="emulated", STILLWAKE_EMULATED_MEMORY="256MiB")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("256", done.stdout.splitlines()[0])

    def test_a_long_table_is_shortened(self):
        content, _ = safetensors({f"layer.{i}.w": [8] for i in range(40)})
        path = self.write("long.safetensors", content)
        short = self.run_it("--weights", path, "--emulated")
        self.assertIn("26 more; --all shows them", short.stdout)
        self.assertNotIn("layer.20.w", short.stdout)
        self.assertIn("layer.20.w", self.run_it("--weights", path, "--emulated", "--all").stdout)

    def test_wrong_files(self):
        self.expect_refused(self.run_it("--weights", self.good + "x", "--emulated"), 2, "No such file")
        cut = self.write("cut.safetensors", self.content[:-5])
        self.expect_refused(self.run_it("--weights", cut, "--emulated"), 2, "it is cut, or its offsets are wrong")
        long = self.write("long.safetensors", struct.pack("<Q", 1 << 60) + b"{}")
        self.expect_refused(self.run_it("--weights", long, "--emulated"), 2, str(1 << 60))
        empty = self.write("empty.safetensors", safetensors({})[0])
        self.expect_refused(self.run_it("--weights", empty, "--emulated"), 2, "holds no tensor")

    def test_wrong_options(self):
        self.expect_refused(self.run_it(), 2, "--weights is required")
        self.expect_refused(self.run_it("--weights", self.good, "--nonsense"), 2, "--nonsense")
        self.expect_refused(self.run_it("--weights", self.good, "--cycles", "0"), 2, "--cycles")
        self.expect_refused(self.run_it("--weights", self.good, "--copies", "many"), 2, "--copies")
        self.expect_refused(self.run_it("--weights", self.good, "--emulated", "--device", "7"), 2, "7")
        self.expect_refused(self.run_it("--weights", self.good, STILLWAKE_DRIVER="imagined"), 2, "imagined")
        self.assertEqual(self.run_it("--help").returncode, 0)

    def test_a_device_too_small(self):
        done = self.run_it("--weights", self.good, "--emulated", "--copies", "100", STILLWAKE_EMULATED_MEMORY="64MiB")
        self.expect_refused(done, 1, "out of device memory")

    def test_a_driver_call_that_fails(self):
        done = self.run_it("--weights", self.good, "--emulated", STILLWAKE_FAULTS="cuMemcpyDtoHAsync:40+")
        self.expect_refused(done, 1, "cuMemcpyDtoHAsync")


if __name__ == "__main__":
    unittest.main()
