# SPDX-License-Identifier: Apache-2.0
"""Each lint finds the fault in a bad sample and nothing in a good one."""
import json
import tempfile
import unittest
from pathlib import Path

import format_lint
import ladder_lint
import length_lint
import license_lint
import names_lint
import snippets_lint
import tidy_lint

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
TOP = Path(__file__).resolve().parent.parent.parent
GOOD = {
    "allocator/base/meson.build": "# SPDX-License-Identifier: Apache-2.0\npublic_headers += [\n"
                                  "  'allocator/base/units.h',\n]\n",
    "allocator/base/base.h": SPDX + '#include "allocator/base/units.h"\n',
    "allocator/base/units.h": SPDX + "namespace stillwake { class Bytes; }\n",
    "allocator/driver/driver_layer.h": SPDX + '#include "allocator/base/base.h"\n#include <cuda.h>\n',
    "allocator/memory/memory.h": SPDX + '#include "allocator/driver/driver_layer.h"\n',
    "shard/group.cpp": SPDX + '#include "allocator/memory/memory.h"\n#include <nccl.h>\n',
}


class Sample(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name).resolve()
        self.addCleanup(self.folder.cleanup)
        self.write(GOOD)

    def write(self, contents):
        for path, text in contents.items():
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)

    def expect(self, lint, *parts):
        """One fault whose text has every part; without parts, no fault."""
        found = lint.faults(self.root)
        self.assertEqual(len(found), 1 if parts else 0, found)
        for part in parts:
            self.assertIn(part, found[0])


class Ladder(Sample):
    def test_good_tree(self):
        self.expect(ladder_lint)

    def test_lower_layer_used_from_above(self):
        self.write({"allocator/driver/early.h": SPDX + '\n#include "allocator/memory/memory.h"\n'})
        self.expect(ladder_lint, "allocator/driver/early.h:3:", "stands above")

    def test_around_the_umbrella(self):
        self.write({"allocator/memory/direct.cpp": SPDX + '#include "allocator/base/units.h"\n'})
        self.expect(ladder_lint, "through", "allocator/base/base.h")

    def write_public(self, text):
        self.write({"shard/meson.build": "public_headers += ['shard/stillwake.h']\n", "shard/stillwake.h": SPDX + text})

    def test_public_header_may_go_direct(self):
        self.write_public('#include "../allocator/base/units.h"\n')
        self.expect(ladder_lint)

    def test_public_header_with_an_inner_one(self):
        self.write_public('#include "../allocator/base/base.h"\n')
        self.expect(ladder_lint, "not installed")

    def test_public_header_that_an_include_path_could_lead_astray(self):
        self.write_public('#include "allocator/base/units.h"\n')
        self.expect(ladder_lint, "shard/stillwake.h:2:", "not a path from that header")

    def test_driver_header_outside_the_driver(self):
        self.write({"allocator/memory/raw.cpp": SPDX + "#include <cudaTypedefs.h>\n"})
        self.expect(ladder_lint, "cudaTypedefs.h is included only in allocator/driver/")

    def test_nccl_outside_the_group(self):
        self.write({"shard/ticket.cpp": SPDX + "#include <nccl.h>\n"})
        self.expect(ladder_lint, "nccl.h is included only in shard/group.")

    def test_torch_in_the_core(self):
        self.write({"shard/tensor.cpp": SPDX + "#include <torch/torch.h>\n"})
        self.expect(ladder_lint, "torch_plugin/")

    def test_thread_made_elsewhere(self):
        self.write({"allocator/base/start_thread.h": SPDX + "std::thread start() { return std::thread(run); }\n",
                    "shard/wait.cpp": SPDX + "std::vector<std::thread> all;\nstd::thread::id own;\n"})
        self.expect(ladder_lint)
        for line in ("auto thread = std::thread([] {});", "std::thread thread(run);", "std::jthread thread{run};",
                     "auto later = std::async(run);"):
            self.write({"shard/save.cpp": SPDX + line + "\n"})
            self.expect(ladder_lint, "shard/save.cpp:2: threads are made in")

    def test_include_not_from_the_root(self):
        self.write({"allocator/base/short.h": SPDX + '#include "units.h"\n'})
        self.expect(ladder_lint, "not a path from the root")

    def test_example_with_an_inner_header(self):
        self.write({"examples/inside.cpp": SPDX + '#include "allocator/memory/memory.h"\n'})
        self.expect(ladder_lint, "not a public header")

    def test_comment_is_no_include(self):
        self.write({"allocator/base/note.h": SPDX + '/*\n#include "shard/x.h"\n*/\n'})
        self.expect(ladder_lint)

    def test_vague_names(self):
        self.write({"shard/utils/copy.h": SPDX})
        self.expect(ladder_lint, "'utils' says nothing")
        (self.root / "shard/utils/copy.h").rename(self.root / "shard/helpers.h")
        self.expect(ladder_lint, "'helpers.h' says nothing")


class Length(Sample):
    def test_limits(self):
        self.write({"shard/long.cpp": SPDX * 500, "meson.build": SPDX * 120, "README.md": "x\n" * 60})
        self.expect(length_lint)
        self.write({"shard/long.cpp": SPDX * 501})
        self.expect(length_lint, "shard/long.cpp: 501 lines, at most 500")

    def test_root_build_file(self):
        self.write({"meson.build": SPDX * 121})
        self.expect(length_lint, "meson.build: 121 lines, at most 120")

    def test_one_screen(self):
        self.write({"README.md": "x\n" * 61})
        self.expect(length_lint, "README.md: 61 lines, at most 60")

    def test_scripts_count(self):
        self.write({"dev": "#!/bin/sh\n" * 501})
        self.expect(length_lint, "dev: 501 lines")

    def test_columns_of_python(self):
        self.write({"scripts/wide.py": SPDX + "x = 1  #" + "w" * 112 + "\n"})
        self.expect(length_lint)
        self.write({"scripts/wide.py": SPDX + "x = 1  #" + "w" * 113 + "\n"})
        self.expect(length_lint, "scripts/wide.py:2: 121 columns, at most 120")


class License(Sample):
    def setUp(self):
        super().setUp()
        self.write({"dev": "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n"})

    def test_good_tree(self):
        self.expect(license_lint)

    def test_missing(self):
        self.write({"shard/bare.cpp": "int x;\n"})
        self.expect(license_lint, "shard/bare.cpp")

    def test_not_first(self):
        self.write({"shard/late.h": "#pragma once\n" + SPDX})
        self.expect(license_lint, "shard/late.h")

    def test_another_licence(self):
        self.write({"scripts/other.py": "# SPDX-License-Identifier: MIT\n"})
        self.expect(license_lint, "scripts/other.py")

    def test_empty_file(self):
        self.write({"tests/meson.build": ""})
        self.expect(license_lint, "tests/meson.build")

    def test_build_folders_are_passed_over(self):
        self.write({"build/made.cpp": "int x;\n", ".venv/lib/other.py": "x\n"})
        self.expect(license_lint)


class Names(Sample):
    def document(self, text):
        self.write({"docs/concepts.md": text})

    def test_good_names(self):
        self.write({"meson_options.txt": "option('nccl', type: 'feature')\n", "dev": "STILLWAKE_DRIVER\n",
                    "shard/meson.build": "executable('program')\n"})
        self.document("`shard/program`, `stillwake::Bytes` in `allocator/base/units.h`, `units.h`, `shard/group.*`, "
                      "`STILLWAKE_DRIVER`, `./dev test`, `-Dnccl=disabled`, `std::vector`, `cuda.h`, `/dev/shm`, "
                      "[up](concepts.md)\n")
        self.expect(names_lint)

    def test_bad_names(self):
        for text, part in (("`shard/gone.h`", "shard/gone.h"), ("`shard/gone_program`", "shard/gone_program"),
                           ("`gone.cpp`", "gone.cpp"), ("`./gone`", "gone"),
                           ("`stillwake::Pages`", "stillwake::Pages"), ("`STILLWAKE_GONE`", "STILLWAKE_GONE"),
                           ("`stillwake_gone()`", "stillwake_gone"), ("[x](gone.md)", "gone.md"),
                           ("`Bytes::gone`", "Bytes::gone"), ("`-Dgone=enabled`", "gone"), ("`kGone`", "kGone"),
                           ("`DeviceAddress`", "DeviceAddress"), ("`gone_call()`", "gone_call()"),
                           ("```cpp\nstillwake::Gone x;\n```", "stillwake::Gone")):
            with self.subTest(text):
                self.document("First line.\n" + text + "\n")
                self.expect(names_lint, "docs/concepts.md:", part)

    def test_line_number(self):
        self.document("a\n\n```\nx\n```\n`gone.h`\n")
        self.expect(names_lint, "docs/concepts.md:6:")

    def test_name_only_in_a_comment(self):
        self.write({"shard/x.h": SPDX + "// See stillwake::Removed.\n"})
        self.document("`stillwake::Removed`\n")
        self.expect(names_lint, "stillwake::Removed")


class Snippets(Sample):
    COMPILERS = {"c": ["cc"], "cpp": ["c++"]}

    def faults(self, text):
        self.write({"shard/stillwake.h": "struct Options { const char* name; };\nint open(Options options);\n",
                    "docs/concepts.md": "# Concepts\n" + text})
        return snippets_lint.faults(self.root, self.COMPILERS)

    def test_programs_and_parts_that_compile(self):
        self.assertEqual(self.faults("```cpp\n#include <stillwake/stillwake.h>\n\nOptions options;\nopen(options);\n"
                                     "```\n"
                                     "```cpp\nint main() { return 0; }\n```\n```c\nint x = 1;\n(void)x;\n```\n"
                                     "```sh\nnot C\n```\n"), [])

    def test_what_does_not_compile_is_named_with_its_line(self):
        for text in ("```cpp\n#include <stillwake/stillwake.h>\nopen(undefined);\n```",
                     "```cpp\n#include <stillwake/stillwake.h>\nopen({.name = \"C++20\"});\n```",
                     "```c\nauto x = nullptr;\n```"):
            with self.subTest(text):
                found = self.faults("\n" + text + "\n")
                self.assertEqual(len(found), 1, found)
                self.assertIn("docs/concepts.md:4: the snippet does not compile", found[0])


class Format(Sample):
    def test_good_and_bad(self):
        program = format_lint.clang_format(TOP)
        if program is None:
            self.skipTest("no clang-format 14")
        self.write({".clang-format": (TOP / ".clang-format").read_text(), "good.cpp": "int x = 1;\n",
                    "bad.cpp": "int  x=1 ;\n"})
        good, bad = self.root / "good.cpp", self.root / "bad.cpp"
        self.assertEqual(format_lint.badly_formatted(program, [good]), "")
        self.assertIn("bad.cpp:1", format_lint.badly_formatted(program, [good, bad]))
        self.assertEqual(format_lint.badly_formatted(program, [bad], fix=True), "")
        self.assertEqual(bad.read_text(), good.read_text())


class Tidy(Sample):
    def test_good_and_bad(self):
        program = tidy_lint.clang_tidy()
        if program is None:
            self.skipTest("no clang-tidy 14")
        head = "#include <string>\n#include <utility>\nvoid take(std::string text);\nvoid give(std::string text) {\n"
        self.write({".clang-tidy": (TOP / ".clang-tidy").read_text(),
                    "shard/good.cpp": head + "  take(std::move(text));\n}\n",
                    "shard/bad.cpp": head + "  take(std::move(text));\n  take(text);\n}\n",
                    "tests/bad.cpp": head + "  take(std::move(text));\n  take(text);\n}\n"})
        build = self.root / "build"
        build.mkdir()
        entries = [{"directory": str(build), "file": f"../{path}", "command": f"c++ -std=c++20 -c ../{path}"}
                   for path in ("shard/good.cpp", "shard/bad.cpp", "tests/bad.cpp")]
        (build / "compile_commands.json").write_text(json.dumps(entries))
        found = tidy_lint.faults(program, self.root, build)
        self.assertEqual(len(found), 1, found)
        self.assertIn("bugprone-use-after-move", found[0])
        self.assertIn("shard/bad.cpp", found[0])


if __name__ == "__main__":
    unittest.main()
