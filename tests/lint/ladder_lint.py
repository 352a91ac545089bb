# SPDX-License-Identifier: Apache-2.0
"""The ladder of the layers: a folder includes only folders above it, through their umbrella headers.

Public headers may include public headers directly, so that an installed header drags in no more than it needs; they do
it relative to themselves, so that no include path of a program can put another file in their place.
The driver's headers are included in allocator/driver alone, nccl.h in shard/group.* alone, torch in torch_plugin.
The layers make threads in allocator/base/start_thread.h alone."""
import posixpath
import re
import sys
from pathlib import Path

import tree

LADDER = ("allocator/base", "allocator/driver", "allocator/memory", "allocator/host", "allocator/transfer",
          "allocator/heap", "shard")
# A second umbrella: the emulation is a product part, and who registers a kernel's twin needs its face.
FACES = ("allocator/driver/emulation/emulation.h",)
USERS_OF_PUBLIC_HEADERS = ("examples", "torch_plugin")
# The rooms of the PyTorch face have a ladder of their own; the last two need libraries that the first does not.
TORCH_LADDER = ("torch_plugin/library", "torch_plugin/cuda", "torch_plugin/python")
# Makes the driver calls that a user makes with the CUDA runtime; injects faults for tests.
LOOKS_BEHIND = ("examples/device_copy.cpp", "torch_plugin/python/bindings/module_cpu.cpp")
VAGUE = {"util", "utils", "utility", "utilities", "helper", "helpers", "common", "misc"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)
# What may include a header of this name, as the beginning of a path.
ONLY_IN = (
    (re.compile(r"^cuda[\w]*\.h$"), ("allocator/driver/", "tests/driver/")),
    (re.compile(r"^nccl\.h$"), ("shard/group.",)),
    (re.compile(r"^(torch|ATen|c10|pybind11)/"), ("torch_plugin/", "tests/torch_plugin/", "examples/libtorch_train/")),
)
# A thread that the system does not give is an error there and an exception elsewhere.
MAKES_A_THREAD = re.compile(r"\bstd::j?thread(\s+\w+)?\s*[({]|\bstd::async\b|\bpthread_create\b")
MAKES_THREADS = "allocator/base/start_thread.h"


def layer_of(path):
    for layer in LADDER:
        if path.startswith(layer + "/"):
            return layer
    return None


def public_headers(root):
    """The paths that the layers' build files add to public_headers."""
    found = set()
    for build in tree.files(root):
        if build.name == "meson.build":
            for block in re.findall(r"public_headers\s*\+?=\s*(?:files\()?\[?([^\])]*)", tree.read(build)):
                found.update(re.findall(r"'([^']+\.h)'", block))
    return found


def umbrella(root, layer):
    """The one header through which other layers use this one."""
    name = layer.split("/")[-1]
    for candidate in (f"{layer}/{name}_layer.h", f"{layer}/{name}.h"):
        if (root / candidate).exists():
            return candidate
    return f"{layer}/{name}.h"


def fault_of_include(root, public, path, included):
    """What is wrong with an include in quotes, or None."""
    if path in public:
        relative_to, included = "that header", posixpath.normpath(posixpath.join(posixpath.dirname(path), included))
    else:
        relative_to = "the root of the tree"
    if not (root / included).exists():
        return f'"{included}" is not a path from {relative_to}'
    if path in public and included not in public:
        return f'a public header includes "{included}", which is not installed'
    own, other = layer_of(path), layer_of(included)
    is_user = path.split("/")[0] in USERS_OF_PUBLIC_HEADERS and path not in LOOKS_BEHIND
    if is_user and other is not None and included not in public:
        return f'"{included}" is not a public header; {path.split("/")[0]} uses what a user has'
    rooms = [next((at for at, room in enumerate(TORCH_LADDER) if name.startswith(room + "/")), None)
             for name in (path, included)]
    if None not in rooms and rooms[1] > rooms[0]:
        return f"{TORCH_LADDER[rooms[0]]} stands above {TORCH_LADDER[rooms[1]]} in the ladder and may not use it"
    if own is None:
        return None
    if other is None:
        return f'{own} may not use "{included}", which is in no layer'
    if own == other:
        return None
    if LADDER.index(other) > LADDER.index(own):
        return f"{own} stands above {other} in the ladder and may not use it"
    if included not in (umbrella(root, other), *FACES) and not (path in public and included in public):
        return f'"{included}": use {other} through "{umbrella(root, other)}"'
    return None


def faults(root):
    found = []
    public = public_headers(root)
    for file in tree.code(root):
        path = tree.relative(root, file)
        text = tree.without_comments(tree.read(file))
        for match in INCLUDE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            quote, included = match.groups()
            wrong = fault_of_include(root, public, path, included) if quote == '"' else None
            for pattern, places in ONLY_IN:
                if pattern.match(included) and not path.startswith(places):
                    wrong = f"{included} is included only in {', '.join(places)}"
            if wrong:
                found.append(f"{path}:{line}: {wrong}")
        if layer_of(path) is not None and path != MAKES_THREADS:
            for match in MAKES_A_THREAD.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path}:{line}: threads are made in {MAKES_THREADS} alone; call start_thread")
    for file in tree.files(root):
        path = tree.relative(root, file)
        vague = [part for part in path.split("/") if part.split(".")[0].lower() in VAGUE]
        if vague:
            found.append(f"{path}: '{vague[0]}' says nothing; name the thing")
    return found


if __name__ == "__main__":
    tree.report(faults(Path(sys.argv[1]).resolve()))
