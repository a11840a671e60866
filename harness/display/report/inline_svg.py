"""matplotlib's figures inside the page: in its colours, light and dark, and with words that can be found and copied."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from typing import Any
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from harness.choices import Width
from harness.display.figures import style

PALETTE = (*style.COLOURS.values(), *(look.colour for look in style.looks("0123").values()))
"""The conditions' colours and the spare ones. The style sheet has each as `--s0`, `--s1` and so on."""
VARIABLES = {colour: f"s{place}" for place, colour in enumerate(PALETTE)} | {
    style.INK: "ink",
    style.MUTED: "soft",
    style.GRID: "line",
    "#000000": "ink",
    "#eeeeee": "shade",
    "#ffffff": "paper",
}
"""The style sheet's name of every colour that is drawn with."""


def show(draw: Callable[[Width], Figure], *, name: str, alternative: str) -> dict[str, Any]:
    """A figure for the template: drawn for wide windows and for narrow ones, with its note as the caption.

    Args:
        draw: Makes it at a width.
        name: No other figure on the page has it.
        alternative: What it shows, for those who do not see it.
    """
    wide, narrow = draw("page"), draw("column")
    return {
        "caption": " ".join(wide.get_supxlabel().split()),
        "wide": embed(wide, name=f"{name}-wide", alternative=alternative),
        "narrow": embed(narrow, name=f"{name}-narrow", alternative=alternative),
    }


def embed(figure: Figure, *, name: str, alternative: str) -> Markup:
    """A figure as an SVG element, without its note.

    The page's policy forbids styles in attributes. So each becomes an attribute of its own, in the page's colours.

    Args:
        figure: Of `harness.display.figures`, or in their style.
        name: No other figure on the page has it: what is drawn refers to its parts by names.
        alternative: What it shows, for those who do not see it.
    """
    figure.supxlabel("")
    drawn = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(drawn, format="svg", bbox_inches="tight", pad_inches=0.02, transparent=True)
    used = set(re.findall(r"#(\w+)[)\"]", drawn.getvalue()))
    root = ElementTree.fromstring(drawn.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = _attributes(element.attrib, used)
    _, _, *size = root.attrib["viewBox"].split()
    root.attrib = {"viewBox": f"0 0 {' '.join(size)}", "role": "img", "aria-label": alternative}
    return Markup(ElementTree.tostring(root, encoding="unicode").replace("\n", ""))


def _attributes(given: dict[str, str], used: set[str]) -> dict[str, str]:
    """An element's attributes: styles apart, colours by name, short numbers, and its name if something refers to it."""
    kept = {key.rpartition("}")[2]: value for key, value in given.items() if key != "id" or value in used}
    for rule in filter(None, kept.pop("style", "").split(";")):
        key, _, value = (part.strip() for part in rule.partition(":"))
        if key != "font-family":
            kept[key] = f"var(--{VARIABLES[value]})" if value in VARIABLES else value
    return {key: re.sub(r"\d+\.\d{3,}", lambda one: f"{float(one[0]):.2f}", value) for key, value in kept.items()}
