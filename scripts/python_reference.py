# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/python.md from the docstrings of the package, or says how it differs.

usage: python_reference.py ROOT [--check]     (with the package on PYTHONPATH)"""
import difflib
import inspect
import sys
from pathlib import Path

import stillwake as sw

GROUPS = (
    ("Shards", ("shard", "Shard", "stats", "ShardStats")),
    ("Transitions", ("sleep", "wake", "swap", "awake", "is_awake", "prepare", "trim", "Report", "ReportStep",
                     "Ticket")),
    ("What lives in a shard", ("adopt", "Adopted", "audit", "StrayTensor", "shard_of", "address", "host_view")),
    ("Training jobs", ("attach", "Job", "JobReport")),
    ("Every tensor of the process", ("install", "use", "library_path")),
    ("The driver", ("driver", "Driver")),
    ("Errors", ("Error", "OutOfMemory", "OutOfHostMemory", "OverBudget", "Asleep", "Busy", "InvalidArgument",
                "DriverMissing", "DriverTooOld", "DriverCallFailed", "Corrupted", "Lost", "RankFailed", "TimedOut",
                "Stray")),
)
HEAD = """# Python reference

Made from the docstrings of the package `stillwake` by `scripts/python_reference.py`; `import stillwake as sw`. Sizes
are bytes and times are seconds, unless a line says otherwise. A call may be made from any thread; those that block
release the GIL.
"""


def plain(annotation):
    return str(annotation).strip("'\"").replace("_cpu.", "").replace('"', "")


def signature(thing):
    """As a user writes it; "" for what has none."""
    try:
        told = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    shown, starred = [], False
    for name, parameter in told.parameters.items():
        if name == "self":
            continue
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        text = ("*" if parameter.kind is parameter.VAR_POSITIONAL else "") + name
        if parameter.annotation is not parameter.empty:
            text += f": {plain(parameter.annotation)}"
        shown.append(text if parameter.default is parameter.empty else f"{text} = {parameter.default!r}")
    answer = "" if told.return_annotation in (told.empty, "None") else f" -> {plain(told.return_annotation)}"
    return f"({', '.join(shown)}){answer}"


def text_of(thing):
    text = inspect.getdoc(thing) or ""
    return "" if text.startswith("(") else text  # what pybind11 writes where nobody did


def members(kind):
    """The public members of a class that has a docstring of its own, in the order of its text."""
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        inner = member.fget if isinstance(member, property) else member
        if isinstance(member, property) or inspect.isfunction(member):
            mark = "" if isinstance(member, property) else signature(member)
            yield f"`{kind.__name__}.{name}{mark}`", text_of(inner)


def section(name):
    thing = getattr(sw, name)
    lines = [f"### {name}", ""]
    if inspect.isclass(thing) and issubclass(thing, Exception):
        bases = ", ".join(base.__name__ for base in thing.__bases__)
        return [*lines, f"A {bases}; code {thing.code}. {text_of(thing)}", ""]
    if inspect.isfunction(thing) or name == "use":
        lines += ["```", f"sw.{name}{signature(thing)}", "```", ""]
    lines += [text_of(thing), ""] if text_of(thing) else []
    if inspect.isclass(thing) and thing.__module__.startswith("stillwake"):
        for title, text in members(thing):
            lines += [f"- {title}" + (f": {' '.join(text.split())}" if text else "")]
        lines.append("")
    return lines


def page():
    listed = [name for _, names in GROUPS for name in names]
    assert sorted(listed) == sorted(sw.__all__), sorted(set(listed) ^ set(sw.__all__))
    lines = [HEAD]
    for title, names in GROUPS:
        lines += [f"## {title}", ""]
        for name in names:
            lines += section(name)
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def main():
    path = Path(sys.argv[1]) / "docs/reference/python.md"
    wanted = page()
    if "--check" not in sys.argv[2:]:
        path.write_text(wanted)
        return 0
    difference = list(difflib.unified_diff(path.read_text().splitlines() if path.exists() else [], wanted.splitlines(),
                                           str(path), "the docstrings", lineterm=""))
    print("\n".join(difference) or "0 faults")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
