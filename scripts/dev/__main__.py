# SPDX-License-Identifier: Apache-2.0
"""The commands of ./dev."""
import argparse
import json
import os
import subprocess
import sys

import builds
import demo
import machine
import pytorch
import testing
import tools
from machine import ROOT, die, say


def prepare(required, optional=(), with_format=False, with_torch=False):
    """Installs what is missing; answers whether build folders must look again at what there is."""
    found_more = machine.ensure((*machine.REQUIRED, *required), (*machine.HELPFUL, *optional))
    found_more = tools.ensure(with_format) or found_more
    return (with_torch and pytorch.ensure()) or found_more


def command_build(options):
    again = prepare(machine.TOOLS, (*machine.TESTS, *machine.BENCHMARKS))
    builds.configure(builds.PLAIN, again)
    builds.compile_targets(builds.PLAIN, options.targets)
    return 0


def command_demo(options):
    again = prepare(machine.TOOLS, with_torch=True)
    builds.configure(builds.PLAIN, again)
    in_pytorch = pytorch.usable() and not options.arguments
    builds.compile_targets(builds.PLAIN, ["examples/zero_pointer_wake", *(["python-package"] if in_pytorch else [])])
    ended = demo.run(builds.PLAIN, options.arguments)
    return demo.run_in_pytorch(builds.PLAIN) if ended == 0 and in_pytorch else ended


def command_test(options):
    again = prepare((*machine.TOOLS, *machine.TESTS), (*machine.BENCHMARKS, *machine.CHECKS), with_format=True,
                    with_torch=not options.sanitize)
    if not options.sanitize and (against := demo.fetch()):
        say(f"going on without the weights of a real model: {against}")
    tally = testing.Tally()
    everything = options.everything or os.environ.get("CI") == "true"
    try:
        if options.sanitize:
            testing.run_sanitized(options.sanitize, tally, again)
        else:
            builds.configure(builds.PLAIN, again)
            suites = testing.known_suites(builds.PLAIN)
            if options.suite and options.suite not in suites:
                die(f"{builds.PLAIN.folder}/ was set up without suite '{options.suite}'; it has "
                    f"{', '.join(sorted(suites))}")
            builds.compile_targets(builds.PLAIN)
            testing.run(builds.PLAIN, [options.suite] if options.suite else [], tally)
            if everything and not options.suite:
                for name in builds.SANITIZED:
                    testing.run_sanitized(name, tally, again)
    except SystemExit as ended:
        # A build that fails is a failure like any other: the last line says so.
        say(f"stopped: {ended.code}")
        tally.failed += 1
    print(tally, flush=True)
    return 0 if tally.good() else 1


def command_lint(options):
    options.suite, options.sanitize, options.everything = "lint", None, False
    return command_test(options)


def command_bench(options):
    again = prepare((*machine.TOOLS, *machine.BENCHMARKS))
    builds.configure(builds.MEASURE, again)
    builds.compile_targets(builds.MEASURE)
    found = subprocess.run([tools.meson(), "introspect", "--targets", builds.MEASURE.folder], cwd=ROOT,
                           capture_output=True, text=True, check=True)
    programs = {target["name"]: target["filename"][0] for target in json.loads(found.stdout)
                if target["type"] == "executable" and f"{os.sep}benchmarks{os.sep}" in target["defined_in"]}
    if options.program and options.program not in programs:
        die(f"there is no benchmark '{options.program}'; there are {', '.join(sorted(programs))}")
    env = demo.ask_for_a_driver(tools.environment())
    worst = 0
    for name in [options.program] if options.program else sorted(programs):
        say(f"benchmark {name}")
        worst = max(worst, abs(subprocess.run([programs[name], *options.arguments], cwd=ROOT, env=env).returncode))
    return worst


def command_format(options):
    tools.ensure(with_format=True)
    if tools.clang_format() is None:
        die("clang-format is missing")
    check = [sys.executable, "-B", str(ROOT / "tests/lint/format_lint.py"), str(ROOT), "--fix"]
    return subprocess.run(check).returncode


def parse(words):
    parser = argparse.ArgumentParser(
        prog="./dev", description="Builds, tries, tests and measures Stillwake. Installs what is missing, once.",
        epilog="With CI=true, `test` without a suite also runs the suites under both sanitizers.")
    parser.add_argument("--offline", action="store_true", help="install nothing, ask no network")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name, function, text):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(function=function)
        return command

    show = add("demo", command_demo, "real weights sleep and wake, on a GPU or on the emulated driver")
    show.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on; --help lists them; --weights FILE")
    test = add("test", command_test, "build and run the tests; the last line counts them")
    test.add_argument("suite", nargs="?", choices=testing.suites_in_tree(), help="one suite; all when none is named")
    test.add_argument("--sanitize", choices=sorted(builds.SANITIZED), help="unit and model under a sanitizer")
    test.add_argument("--everything", action="store_true", help="what CI runs: the sanitizers too")
    bench = add("bench", command_bench, "build for speed and run the benchmarks")
    bench.add_argument("program", nargs="?", help="one program; all when none is named")
    bench.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on")
    add("lint", command_lint, "run suite lint")
    build = add("build", command_build, "build everything in build/")
    build.add_argument("targets", nargs="*", help="only these targets")
    add("format", command_format, "clang-format every source in place")
    return parser.parse_args(words)


def main():
    words = sys.argv[1:]
    # `./dev demo --help` is the demo's own help.
    own = words.index("demo") + 1 if "demo" in words[:2] else len(words)
    options = parse(words[:own])
    if options.command == "demo":
        options.arguments = words[own:]
    if options.offline:
        os.environ[machine.OFFLINE] = "1"
    try:
        return options.function(options)
    except KeyboardInterrupt:
        return 130


sys.exit(main())
