"""Where tasks, configs and the demo lie: in the checkout as they stand, or inside the installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """The folder `tasks` or `configs`: beside the package in a checkout, inside it in a wheel."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def task_version() -> float:
    """The version of our lm-eval tasks: it goes up when a prompt or its grading changes."""
    text = (folder("tasks") / "math500" / "_math500.yaml").read_text(encoding="utf-8")
    return float(text.rpartition("version:")[2])


def demo_folder() -> Path:
    """The bundled problem set and, in `model/`, the bundled model."""
    return _PACKAGE / "demo"


def demo_model() -> Path:
    """The bundled model with its tokenizer."""
    return demo_folder() / "model"


def resolve_model(name: str) -> str:
    """A model's name as loaders take it: `demo` becomes the bundled model's folder, other names stay."""
    return str(demo_model()) if name == "demo" else name


def name_model(name: str) -> str:
    """The reverse of `resolve_model`, for receipts, which should not name the place of somebody's checkout."""
    return "demo" if name == str(demo_model()) else name
