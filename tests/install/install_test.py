# SPDX-License-Identifier: Apache-2.0
"""Builds the core with every option off, installs it under a prefix of its own, and uses it from outside.

usage: install_test.py SOURCE_ROOT BUILD_FOLDER C_COMPILER CPP_COMPILER DRIVER_HEADERS CLASS"""
import itertools
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

SKIPPED = 77
OPTIONS_OFF = [f"-D{name}=disabled"
               for name in ("nccl", "torch", "device_code", "benchmarks", "tools", "tests", "numa")]
ROOT, BUILD = Path(sys.argv[1]), Path(sys.argv[2])
C_COMPILER, CPP_COMPILER, DRIVER_HEADERS, CLASS = sys.argv[3].split(), sys.argv[4].split(), sys.argv[5], sys.argv[6]
HERE = ROOT / "tests" / "install"
PREFIX, WORK = BUILD / "prefix", BUILD / "outside"
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "DESTDIR"}


def run(*command, **options):
    """Runs a command and returns what it printed; a failure is a failed test that shows it."""
    options.setdefault("env", ENVIRONMENT)
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return done.stdout


def tool(name):
    pinned = ROOT / ".venv" / "bin" / name
    return str(pinned) if pinned.exists() else shutil.which(name) or name


def install():
    """Brings the prefix up to date."""
    if not (BUILD / "build.ninja").exists():
        run(tool("meson"), "setup", BUILD, ROOT, f"--prefix={PREFIX}", f"-Ddriver_headers={DRIVER_HEADERS}",
            *OPTIONS_OFF)
    run(tool("meson"), "compile", "-C", BUILD)
    shutil.rmtree(PREFIX, ignore_errors=True)
    run(tool("meson"), "install", "-C", BUILD, "--no-rebuild")
    WORK.mkdir(exist_ok=True)


def one(pattern):
    found = sorted(PREFIX.rglob(pattern))
    assert len(found) == 1, f"{pattern}: {found}"
    return found[0]


def needed(program):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", program))


class Installed(unittest.TestCase):
    def test_what_is_there(self):
        library = one("libstillwake.so").parent
        self.assertTrue((library / "libstillwake.a").exists())
        for header in ("stillwake.h", "stillwake_c.h"):
            self.assertTrue((PREFIX / "include/stillwake" / header).exists(), header)

    def test_no_cuda_library_is_named(self):
        for path in [*PREFIX.rglob("*.pc"), *PREFIX.rglob("*.cmake")]:
            self.assertNotRegex(path.read_text(), r"cudart|lcuda|cuda_driver|libcuda")
        self.assertFalse([name for name in needed(one("libstillwake.so")) if "cuda" in name or "nccl" in name])


class Headers(unittest.TestCase):
    def compile_alone(self, header, *flags):
        self.compiles(f"#include <stillwake/{header.relative_to(PREFIX / 'include/stillwake').as_posix()}>\n", *flags)

    def compiles(self, text, *flags):
        command = [*CPP_COMPILER, *flags, "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
                   f"-I{WORK / 'namesakes'}", f"-I{PREFIX / 'include'}", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, f"{text}{flags}\n{done.stderr}")

    def test_each_alone_beside_a_programs_own_headers_of_the_same_names(self):
        headers = sorted((PREFIX / "include/stillwake").rglob("*.h"))
        self.assertGreater(len(headers), 5)
        for header in headers:
            namesake = WORK / "namesakes" / header.relative_to(PREFIX / "include/stillwake")
            namesake.parent.mkdir(parents=True, exist_ok=True)
            namesake.write_text("#error this is the program's own\n")
        for header in headers:
            for standard in ("c++17", "c++20"):
                self.compile_alone(header, "-x", "c++", f"-std={standard}")

    def test_options_in_place_leave_no_warning(self):
        self.compiles("#include <stillwake/stillwake.h>\n"
                      "stillwake::DriverOptions d{.emulated_devices = 2};\n"
                      "stillwake::ShardOptions h{.name = \"weights\"};\n"
                      "stillwake::SleepOptions s{.checked = true};\n"
                      "stillwake::WakeOptions w{.first = {{.pointer = nullptr}}};\n"
                      "stillwake::BlockLiveRanges b{.ranges = {{.size = stillwake::kMiB}}};\n",
                      "-x", "c++", "-std=c++20")

    def test_c_header_is_c(self):
        self.compile_alone(PREFIX / "include/stillwake/stillwake_c.h", "-x", "c", "-std=c99")


class PkgConfig(unittest.TestCase):
    def flags(self, *wishes):
        folder = one("stillwake.pc").parent
        return run("pkg-config", *wishes, "stillwake", env={**ENVIRONMENT, "PKG_CONFIG_PATH": str(folder)}).split()

    def program(self, compiler, source, standard, static, own_first=False):
        """Builds a program from outside, which has a folder shard/ too, runs it, and looks at what it links."""
        flags = self.flags(*["--static"] * static, "--cflags", "--libs")
        if static:
            flags = ["-l:libstillwake.a" if flag == "-lstillwake" else flag for flag in flags]
        own = [f"-I{HERE / 'engine'}"]
        flags = own + flags if own_first else flags + own
        path = WORK / f"{source.replace('.', '_')}{'_static' * static}"
        run(*compiler, standard, "-Wall", "-Wextra", "-Werror", "-o", path, HERE / source, *flags)
        libraries = str(one("libstillwake.so").parent)
        printed = run(path, env={**ENVIRONMENT, "LD_LIBRARY_PATH": libraries})
        self.assertIn("same address, same bytes", printed)
        self.assertEqual(any("stillwake" in name for name in needed(path)), not static)
        return printed

    def test_cpp(self):
        for static, own_first in itertools.product((False, True), repeat=2):
            self.program(CPP_COMPILER, "outside.cpp", "-std=c++17", static, own_first)

    def test_c(self):
        version = self.flags("--modversion")[0]
        for static in (False, True):
            self.assertIn(f"version {version}:", self.program(C_COMPILER, "outside.c", "-std=c99", static))


@unittest.skipUnless(shutil.which("cmake"), "there is no cmake")
class CMake(unittest.TestCase):
    def configure(self, folder, *options):
        shutil.rmtree(folder, ignore_errors=True)
        return run("cmake", "-S", HERE / "cmake", "-B", folder, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={PREFIX}",
                   f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", *options)

    def test_both_targets(self):
        folder = WORK / "cmake"
        self.configure(folder)
        run("cmake", "--build", folder)
        for name in ("stillwake", "stillwake_static", "c_stillwake", "c_stillwake_static"):
            program = folder / f"outside_{name}"
            self.assertIn("same address, same bytes", run(program))
            self.assertEqual(any("stillwake" in needs for needs in needed(program)), not name.endswith("static"))

    def test_another_version_is_refused(self):
        with self.assertRaisesRegex(AssertionError, "compatible"):
            self.configure(WORK / "cmake-version", "-DWANTED_VERSION=9.0")
        with self.assertRaisesRegex(AssertionError, "compatible"):
            self.configure(WORK / "cmake-version", "-DWANTED_VERSION=0.1.99")


if __name__ == "__main__":
    install()
    outcome = unittest.main(argv=[sys.argv[0], CLASS], exit=False).result
    nothing_ran = outcome.testsRun == len(outcome.skipped)
    sys.exit(1 if not outcome.wasSuccessful() else SKIPPED if nothing_ran else 0)
