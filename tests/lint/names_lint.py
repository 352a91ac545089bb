# SPDX-License-Identifier: Apache-2.0
"""Names in documents must exist in the tree: files, links, C++ and C names, environment variables, build options."""
import re
import sys
from pathlib import Path

import tree

DOCUMENTS = ("README.md", "CONTRIBUTING.md")
SUFFIXES = r"(?:h|hpp|c|cpp|cu|ptx|py|md|txt|in|build|safetensors)"
# Names of others that our documents speak of.
FOREIGN_FILES = {"cuda.h", "cudaTypedefs.h", "nccl.h", "numa.h", "nvToolsExt.h", "CLI.hpp", "expected.hpp"}
FOREIGN_NAMESPACES = {"std", "tl", "fmt", "torch", "c10", "at", "testing", "nlohmann", "CLI", "benchmark"}
FOREIGN_NAMES = {"CPUOffloadPolicy", "PyTorch", "StorageImpl", "MemPool", "MemTotal", "MemAvailable", "GoogleTest",
                 "NumPy"}
# The names of Python's that documents may use are those of the package.
PACKAGE = "torch_plugin/python/"
# Folders that a build or an installation makes.
MADE = re.compile(r"^(build[\w-]*|include|lib|\.venv|\.cache)(/|$)")
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
OURS = re.compile(r"\bSTILLWAKE_\w*[A-Z0-9]\b|\bstillwake_\w+\b")
QUALIFIED = re.compile(r"(?<![\w:])[A-Za-z_]\w*(?:::~?\w+)+")
TYPE_NAME = re.compile(r"[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+|k[A-Z]\w+|\w+\(\)")
OPTION = re.compile(r"(?<![\w-])-D(\w+)=")
BUILT_IN_OPTIONS = {"prefix", "buildtype", "b_sanitize", "b_lundef", "b_ndebug", "optimization", "debug", "libdir",
                    "default_library", "werror", "CMAKE_PREFIX_PATH"}


class Known:
    """What the tree has: paths, words of the code, words of everything that is no document."""

    def __init__(self, root):
        self.root = root
        every = tree.files(root)
        self.file_names = {path.name for path in every} | FOREIGN_FILES
        self.code_words = set()
        self.words = set()
        for path in every:
            if path.suffix == ".md" or tree.relative(root, path).startswith("tests/lint/"):
                continue
            if path.suffix in tree.CODE:
                text = tree.read(path)
                self.words.update(re.findall(r"\w+", text))
                self.code_words.update(re.findall(r"\w+", tree.without_comments(text)))
            elif path.suffix in tree.SCRIPTS or path.name in tree.NAMED:
                words = re.findall(r"\w+", tree.read(path))
                self.words.update(words)
                if tree.relative(root, path).startswith(PACKAGE):
                    self.code_words.update(words)
        options = root / "meson_options.txt"
        self.options = set(re.findall(r"option\('(\w+)'", tree.read(options))) if options.exists() else set()
        self.options |= BUILT_IN_OPTIONS


def _missing_path(known, text):
    """The path that a word of inline code names and the tree lacks, or None."""
    word = text.split()[0].removeprefix("./").rstrip("/").split(":")[0] if text.split() else ""
    if re.fullmatch(rf"[\w-]+\.{SUFFIXES}", word):
        return None if word in known.file_names else word
    if not re.fullmatch(r"[\w.*-]+(/[\w.*-]+)+", word) and not text.startswith("./"):
        return None
    first = word.split("/")[0]
    looks_like_ours = (known.root / first).is_dir() or text.startswith("./") or re.search(rf"\.{SUFFIXES}$", word)
    if not looks_like_ours or MADE.match(word) or not word or word.split("/")[-1] in FOREIGN_FILES:
        return None
    # A program is named by the folder that builds it.
    recipe = known.root / word.rpartition("/")[0] / "meson.build"
    built = recipe.exists() and f"'{word.split('/')[-1]}'" in tree.read(recipe)
    return None if built or any(known.root.glob(word)) else word


def faults_of(root, known, document):
    text = tree.read(document)
    where = tree.relative(root, document)

    def fault(position, sentence):
        found.append(f"{where}:{text.count(chr(10), 0, position) + 1}: {sentence}")

    found = []
    for match in OURS.finditer(text):
        if match.group() not in known.words:
            fault(match.start(), f"{match.group()} is nowhere in the code")
    for match in QUALIFIED.finditer(text):
        parts = [part.lstrip("~") for part in match.group().split("::")]
        if parts[0] not in FOREIGN_NAMESPACES and not set(parts) <= known.code_words:
            fault(match.start(), f"{match.group()} is nowhere in the code")
    for match in OPTION.finditer(text):
        if match.group(1) not in known.options:
            fault(match.start(), f"there is no build option {match.group(1)}")
    for match in re.finditer(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in match.group(1) and not (document.parent / match.group(1)).exists():
            fault(match.start(), f"the link leads to {match.group(1)}, which does not exist")
    prose = FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block.group()), text)
    for match in INLINE.finditer(prose):
        code = match.group(1).strip()
        path = _missing_path(known, code)
        if path:
            fault(match.start(), f"{path} is not in the tree")
        name = code.removesuffix("()")
        if TYPE_NAME.fullmatch(code) and not OURS.match(code) and name not in known.code_words | FOREIGN_NAMES:
            fault(match.start(), f"{code} is nowhere in the code")
    return found


def documents(root):
    found = [root / name for name in DOCUMENTS if (root / name).exists()]
    return found + (sorted((root / "docs").rglob("*.md")) if (root / "docs").is_dir() else [])


def faults(root):
    known = Known(root)
    return [fault for document in documents(root) for fault in faults_of(root, known, document)]


if __name__ == "__main__":
    tree.report(faults(Path(sys.argv[1]).resolve()))
