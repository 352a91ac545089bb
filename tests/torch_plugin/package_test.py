# SPDX-License-Identifier: Apache-2.0
"""The Python package as pip installs it, and the LibTorch library as C++ programs find it: built, installed, used.

usage: package_test.py SOURCE_ROOT BUILD_FOLDER CPP_COMPILER TORCH_ROOT CLASS"""
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

ROOT, BUILD, CPP_COMPILER, TORCH, CLASS = (Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(), Path(sys.argv[4]),
                                           sys.argv[5])
PREFIX, SITE = BUILD / "prefix", BUILD.with_name(BUILD.name + "-site")
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("DESTDIR", "PYTHONPATH")}
ENVIRONMENT["STILLWAKE_DRIVER"] = "emulated"
OUTSIDE = ROOT / "tests/torch_plugin/outside"


def run(*command, status=0, **options):
    """What a command printed; another exit status is a failed test that shows it."""
    options.setdefault("env", ENVIRONMENT)
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **options)
    if done.returncode != status:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return done.stdout


def tool(name):
    pinned = ROOT / ".venv/bin" / name
    return str(pinned) if pinned.exists() else shutil.which(name) or name


class Pip(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(SITE, ignore_errors=True)
        # The everyday build's options and depth, so that ccache has its objects.
        run(sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--quiet", "--target", SITE,
            f"-Cbuild-dir={BUILD}", "-Csetup-args=-Dbuildtype=debugoptimized", ROOT)

    def python(self, text, **options):
        options.setdefault("env", {**ENVIRONMENT, "PYTHONPATH": str(SITE)})
        return run(sys.executable, "-c", text, cwd=SITE.parent, **options)

    def test_it_sleeps_and_wakes(self):
        told = self.python("import torch, stillwake as sw\n"
                           "shard = sw.shard('one'); tensor = torch.ones(1000); sw.adopt([tensor], shard)\n"
                           "before = tensor.data_ptr(); sw.sleep(); sw.wake()\n"
                           "print(tensor.data_ptr() == before, tensor.sum().item(), sw.__file__)")
        self.assertRegex(told, rf"True 1000.0 {re.escape(str(SITE))}")

    def test_the_global_allocators_functions_are_where_it_says(self):
        told = self.python("import ctypes, stillwake as sw; print(sw.library_path())\n"
                           "for name in ('stillwake_torch_malloc', 'stillwake_torch_free'):\n"
                           "    getattr(ctypes.CDLL(sw.library_path()), name)")
        self.assertTrue(Path(told.strip()).is_relative_to(SITE), told)

    def test_another_minor_version_of_torch_is_refused_in_one_sentence(self):
        told = self.python("import torch; torch.__version__ = '2.99.0'; import stillwake", status=1)
        self.assertRegex(told.splitlines()[-1], r"ImportError: this build of stillwake is for torch 2\.\d+ and found "
                                                r"torch 2\.99\.0; build it again .*in its source tree: pip "
                                                r"install .*\.$")

    def test_nothing_of_the_development_files_is_installed(self):
        names = [path.name for path in SITE.rglob("*") if path.is_file()]
        self.assertIn("py.typed", names)
        self.assertFalse([name for name in names if name.endswith((".a", ".h", ".pc", ".cmake"))])


class LibTorch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        off = [f"-D{name}=disabled" for name in ("tests", "tools", "benchmarks", "device_code")]
        if not (BUILD / "build.ninja").exists():
            run(tool("meson"), "setup", BUILD, ROOT, f"--prefix={PREFIX}", *off, "-Dtorch=enabled")
        run(tool("meson"), "compile", "-C", BUILD)
        shutil.rmtree(PREFIX, ignore_errors=True)
        run(tool("meson"), "install", "-C", BUILD, "--no-rebuild")

    def runs(self, program):
        libraries = sorted({str(path.parent) for path in PREFIX.rglob("libstillwake*.so")}) + [str(TORCH / "lib")]
        told = run(program, env={**ENVIRONMENT, "LD_LIBRARY_PATH": os.pathsep.join(libraries)})
        self.assertIn("same address, same bytes", told)

    def test_pkg_config(self):
        folder = next(PREFIX.rglob("stillwake_torch.pc")).parent
        flags = run("pkg-config", "--cflags", "--libs", "stillwake_torch",
                    env={**ENVIRONMENT, "PKG_CONFIG_PATH": str(folder)}).split()
        self.assertFalse([flag for flag in flags if str(TORCH) in flag], "no path of this machine's torch")
        program = BUILD / "outside_torch"
        run(*CPP_COMPILER, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-isystem", TORCH / "include", "-o", program,
            OUTSIDE / "outside_torch.cpp", *flags, f"-L{TORCH / 'lib'}", "-ltorch_cpu", "-lc10")
        self.runs(program)

    def test_its_headers_beside_a_programs_own_headers_of_the_same_names(self):
        installed, namesakes = PREFIX / "include/stillwake", BUILD / "namesakes"
        headers = sorted(path.relative_to(installed) for path in installed.rglob("*.h") if "torch" in str(path))
        self.assertIn(Path("torch_plugin/library/guard.h"), headers)
        for header in (path.relative_to(installed) for path in installed.rglob("*.h")):
            (namesakes / header).parent.mkdir(parents=True, exist_ok=True)
            (namesakes / header).write_text("#error this is the program's own\n")
        source = BUILD / "every_header.cpp"
        source.write_text("".join(f"#include <stillwake/{header.as_posix()}>\n" for header in headers))
        run(*CPP_COMPILER, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-isystem", TORCH / "include",
            f"-I{namesakes}", f"-I{PREFIX / 'include'}", source)

    @unittest.skipUnless(shutil.which("cmake"), "there is no cmake")
    def test_cmake(self):
        folder = BUILD / "outside"
        shutil.rmtree(folder, ignore_errors=True)
        run("cmake", "-S", OUTSIDE, "-B", folder, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={PREFIX}",
            f"-DTORCH_ROOT={TORCH}", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}")
        run("cmake", "--build", folder)
        self.runs(folder / "outside_torch")


if __name__ == "__main__":
    BUILD.mkdir(exist_ok=True)
    unittest.main(argv=[sys.argv[0], CLASS])
