# SPDX-License-Identifier: Apache-2.0
"""Writes a PTX file as a C++ source that defines it as one string: embed_ptx.py PTX OUT."""
import pathlib
import sys

source, out = map(pathlib.Path, sys.argv[1:])
lines = (f'    "{line}\\n"' for line in source.read_text().replace("\\", "\\\\").replace('"', '\\"').splitlines())
out.write_text(
    "// SPDX-License-Identifier: Apache-2.0\n"
    f"// Made from {source.name} by scripts/embed_ptx.py.\n"
    '#include "allocator/transfer/embedded_ptx.h"\n\n'
    "namespace stillwake {\n\n"
    "const char kPageKernelsPtx[] =\n" + "\n".join(lines) + ";\n\n"
    "} // namespace stillwake\n")
