"""What a report is about: the samples of its runs in one frame, their prompts in parts, their receipts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.documents import document_prompt
from harness.errors import PromptMismatchError, RunError
from harness.records import load_run, read_receipt
from harness.run_folder import read_prompts
from harness.tokenization import find_segments

if TYPE_CHECKING:
    import pandas

PromptKey = tuple[int, str, str, str]
"""The run's number, layout, condition, problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptText:
    """One prompt in parts.

    Attributes:
        problem: The problem's text alone.
        parts: Role and text of every part; joined they are what the model got. What no segment covers is `template`.
        sha256: Hash of the whole.
    """

    problem: str
    parts: tuple[tuple[str, str], ...]
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Content:
    """Everything that a report is made from.

    Attributes:
        frame: One row a sample, as `harness.load_run` gives it, with the number of its run in `run`.
        names: The runs' names.
        receipts: The runs' receipts.
        prompts: Every prompt.
    """

    frame: pandas.DataFrame
    names: tuple[str, ...]
    receipts: tuple[Mapping[str, Any], ...]
    prompts: Mapping[PromptKey, PromptText]


def read_content(folders: Sequence[Path]) -> Content:
    """Read run folders.

    Raises:
        RunError: there is none, one is given twice, or one is no finished run.
    """
    import pandas

    if not folders:
        raise RunError("A report needs at least one run: expected run folders, got none. Name one, as results/demo.")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise RunError(f"A run is given twice: {', '.join(map(str, folders))}. Give each run once.")
    frames, receipts, prompts = [], [], {}
    for number, folder in enumerate(folders):
        frames.append(load_run(folder).assign(run=number))
        receipts.append(read_receipt(folder))
        for row in read_prompts(folder):
            key = (number, str(row["layout"]), str(row["condition"]), str(row["doc"]["id"]))
            prompts[key] = _prompt(row)
    # categories of two runs differ: as words they can be put under one another
    words = [frame.astype({"condition": object, "layout": object}) for frame in frames]
    return Content(
        frame=pandas.concat(words, ignore_index=True) if len(words) > 1 else words[0],
        names=tuple(folder.resolve().name for folder in folders),
        receipts=tuple(receipts),
        prompts=prompts,
    )


def _prompt(row: Mapping[str, Any]) -> PromptText:
    text = row["prompt"]
    parts, at = [], 0
    try:
        spans = find_segments(document_prompt(row["doc"]), text)
    except PromptMismatchError:  # a server's template, which was never seen here
        spans = []
    for role, (low, high) in spans:
        parts += [("template", text[at:low]), (role, text[low:high])]
        at = high
    parts.append(("template", text[at:]))
    return PromptText(
        problem=row["doc"]["problem"], parts=tuple(part for part in parts if part[1]), sha256=row["prompt_sha256"]
    )
