# SPDX-License-Identifier: Apache-2.0
"""The names of the package exist, are documented and typed; the stubs say what the extension modules have."""
import ast
import importlib
import inspect
import pathlib
import subprocess
import sys
import typing

import pytest
import stillwake as sw

PACKAGE = pathlib.Path(sw.__file__).parent


def functions_of(kind):
    """Public methods and properties that a class of the package defines itself."""
    for name, value in vars(kind).items():
        if not name.startswith("_"):
            function = value.fget if isinstance(value, property) else inspect.unwrap(getattr(kind, name))
            if inspect.isfunction(function):
                yield name, function


PUBLIC = [(name, getattr(sw, name)) for name in sw.__all__]
FUNCTIONS = [(name, inspect.unwrap(value)) for name, value in PUBLIC if inspect.isfunction(value)]
FUNCTIONS += [(f"{name}.{method}", function) for name, value in PUBLIC if inspect.isclass(value)
              for method, function in functions_of(value)]


def test_the_list_of_names_is_sorted_and_whole():
    assert sw.__all__ == sorted(sw.__all__)
    assert len(set(sw.__all__)) == len(sw.__all__)
    shown = {name for name, value in vars(sw).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert shown == set(sw.__all__)


@pytest.mark.parametrize("name, value", PUBLIC, ids=sw.__all__)
def test_every_name_has_a_docstring_of_its_own(name, value):
    documented = value.__doc__ or stub_classes("_cpu")[name]
    assert documented and not documented.startswith(f"{name}("), f"{name} has no docstring"
    assert not documented.startswith("Initialize self")


@pytest.mark.parametrize("name, function", FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_every_function_is_documented_and_typed(name, function):
    assert function.__doc__, f"{name} has no docstring"
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty, f"{name} says not what it returns"
    for parameter in signature.parameters.values():
        typed = parameter.annotation is not inspect.Parameter.empty
        assert parameter.name == "self" or typed, f"{name}({parameter.name})"
    assert typing.get_type_hints(function, vars(importlib.import_module(function.__module__))) is not None


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()


def stub_of(module):
    return ast.parse((PACKAGE / f"{module}.pyi").read_text())


def stub_classes(module):
    return {node.name: ast.get_docstring(node) for node in stub_of(module).body if isinstance(node, ast.ClassDef)}


def members_of_stub(node):
    return {part.name if isinstance(part, ast.FunctionDef) else part.target.id for part in node.body
            if isinstance(part, (ast.FunctionDef, ast.AnnAssign))} - {"__init__"}


def names_of(thing):
    return {name for name in vars(thing) if not name.startswith("_")}


@pytest.mark.parametrize("name", ["_cpu", "_cuda"])
def test_a_stub_lists_exactly_what_its_module_has(name):
    module = sys.modules.get(f"stillwake.{name}")
    if module is None and name == "_cuda":
        assert not sw.torch.backends.cuda.is_built(), "a torch with CUDA comes with the module"
        return
    nodes = [node for node in stub_of(name).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    assert {node.name for node in nodes} == names_of(module)
    for node in nodes:
        value = getattr(module, node.name)
        assert inspect.isclass(value) == isinstance(node, ast.ClassDef), node.name
        if inspect.isclass(value):
            assert members_of_stub(node) == names_of(value), node.name


@pytest.mark.parametrize("name", ["_cpu", "_cuda"])
def test_a_function_of_a_stub_takes_as_many_arguments_as_the_modules(name):
    module = sys.modules.get(f"stillwake.{name}")
    for node in stub_of(name).body if module is not None else ():
        if isinstance(node, ast.FunctionDef):
            first = getattr(module, node.name).__doc__.splitlines()[0]  # name(arg0: type, arg1: type) -> type
            arguments = first[len(node.name) + 1:first.rindex(") -> ")]
            told = ast.parse(f"def f({arguments.replace('stillwake.', '')}): ...").body[0].args
            assert len(told.args) == len(node.args.args) + len(node.args.posonlyargs), node.name


def test_the_import_brings_no_torch_distributed_in_and_opens_no_driver():
    program = ("import sys, torch; before = {name for name in sys.modules if name.startswith('torch')}; "
               "import stillwake; from stillwake import _cpu; "
               "new = {name for name in sys.modules if name.startswith('torch')} - before; "
               "assert not [name for name in new if name.startswith(('torch.distributed', 'torch._dynamo'))], new; "
               "assert not _cpu.driver_is_open()")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
