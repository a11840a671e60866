import ast
import re
from pathlib import Path

import pytest

import harness.constants
from harness.experiment.conditions import Condition
from harness.experiment.config import RunConfig

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "harness" / "constants.py"
FILES = [path for package in ("harness", "attention_probe") for path in sorted((ROOT / package).rglob("*.py"))]
DEFAULTS = {"baseline", "condition", "margin", "alpha", "seed", "draws", "count", "separator"} | {
    name.lower() for name in vars(harness.constants) if name.isupper()
}
"""Parameters whose default the constants have, or the schema."""
DEFAULTS |= {
    name
    for model in (RunConfig, Condition)
    for name, field in model.model_fields.items()
    if field.default is not None and not field.is_required()
}


def is_number(value: ast.expr) -> bool:
    """A number, or arithmetic or a tuple of numbers."""
    inner = [node for node in ast.walk(value) if isinstance(node, ast.expr)]
    numbers = [node for node in inner if isinstance(node, ast.Constant) and type(node.value) in (int, float)]
    return all(node in numbers or isinstance(node, ast.UnaryOp | ast.BinOp | ast.Tuple) for node in inner)


def bound_numbers(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and is_number(node.value):
            names = [name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)]
            found += [name for name in names if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name)]
    return found


def literal_defaults(tree: ast.AST) -> list[str]:
    """Parameters with a literal default, whose name the schema or the constants have."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            named = [*node.args.posonlyargs, *node.args.args]
            pairs = [*zip(named[::-1], node.args.defaults[::-1]), *zip(node.args.kwonlyargs, node.args.kw_defaults)]  # noqa: B905
            for argument, default in pairs:
                literal = isinstance(default, ast.Constant) and type(default.value) in (int, float, str)
                if literal and default.value != "" and argument.arg in DEFAULTS:
                    found.append(f"{node.name}({argument.arg}={default.value!r})")
    return found


@pytest.mark.parametrize("finder", [bound_numbers, literal_defaults])
def test_no_default_stands_outside_its_place(finder):
    found = {path.relative_to(ROOT): finder(ast.parse(path.read_text())) for path in FILES if path != HOME}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_finders_find():
    tree = ast.parse(
        "FEWEST = 4\nLOW, HIGH = -1, 2 << 3\nNAME = 'a'\nsmall = 3\ndef f(seed=1, *, baseline='wo', x=2): ..."
    )
    assert bound_numbers(tree) == ["FEWEST", "LOW", "HIGH"]
    assert literal_defaults(tree) == ["f(seed=1)", "f(baseline='wo')"]
