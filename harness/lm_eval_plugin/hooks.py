"""The functions that the task YAMLs name: adapters from lm-eval's calls to ours, no logic of their own.

lm-eval calls a `custom_dataset` with `--metadata` and the model arguments merged; what is not ours is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import datasets

from harness.constants import BASELINE, DEFAULT_SEED, MAX_GEN_TOKS, STUDIED
from harness.errors import ConfigError
from harness.experiment.conditions import FILLERS, Condition, as_condition, named_conditions
from harness.experiment.problems import open_dataset
from harness.experiment.prompt import Layout, PromptSettings, make_document
from harness.experiment.token_checks import build_checked_prompts
from harness.experiment.tokenizer import ModelTokenizer
from harness.grading import GRADED, AuditJob, GradeJob, GraderPool, as_text

Documents = dict[str, datasets.Dataset]


def _documents(condition: Condition, as_published: bool = False, /, **metadata: Any) -> Documents:
    dataset = open_dataset("math500")
    model = ModelTokenizer.from_arguments(metadata)
    # lm-eval does not say whether it will apply the chat template, so both layouts are checked
    layouts = [Layout.AS_PUBLISHED] if as_published else [Layout.RAW]
    if model is not None and model.tokenizer.chat_template and not as_published:
        layouts.append(Layout.CHAT)
    budget = int(metadata.get("max_gen_toks", MAX_GEN_TOKS))
    for layout in layouts:
        settings = PromptSettings(layout=layout)
        (built,) = build_checked_prompts(
            dataset.problems, [condition], settings, model, max_gen_toks=budget
        )
    # raw and chat prompts have the same segments and turns, so the last layout's stand for both
    if built.prompts and built.prompts[0].prompt.answer:
        raise ConfigError(
            "A task of lm-eval cannot begin the answer: use another placement, or `mless run`."
        )
    documents = [
        make_document(problem, one.prompt, condition, layout)
        for problem, one in zip(dataset.problems, built.prompts, strict=True)
    ]
    return {"test": datasets.Dataset.from_list(documents)}


wo, mless, mful, random_sentence = (
    partial(_documents, condition) for condition in named_conditions().values()
)
"""Documents of `math500_wo`, `math500_mless`, `math500_mful` and `math500_random`."""
wo_as_published, mless_as_published = (
    partial(_documents, as_condition(name), True) for name in (BASELINE, STUDIED)
)
"""Documents of `math500_wo_as_published` and `math500_mless_as_published`."""


def filler(**metadata: Any) -> Documents:
    """Documents of `math500_filler`: a filler and its place from metadata, by the keys of a run config's condition."""
    fillers = (*FILLERS, "count_to")
    keys = (*fillers, "count", "separator", "placement", "label", "cue")
    given: dict[str, Any] = {key: metadata[key] for key in keys if key in metadata}
    if not given.keys() & {*fillers}:
        given["unit"] = "/"
    condition = as_condition(
        {"name": "filler", "seed": metadata.get("placement_seed", DEFAULT_SEED), **given}
    )
    return _documents(condition, **metadata)


def grade_responses(
    responses: Sequence[Sequence[str]], docs: Sequence[Mapping[str, Any]]
) -> list[list[str]]:
    """Grade and audit every repeat of every document; both travel as one JSON text, which sample logs keep as it is.

    A completion may carry `graded`: the JSON text that an earlier run made of it. If all do, no grader is started.
    """
    graded: list[list[str]] = [
        [getattr(completion, "graded", "") for completion in repeats] for repeats in responses
    ]
    missing = [
        (row, place)
        for row, texts in enumerate(graded)
        for place, text in enumerate(texts)
        if not text
    ]
    if missing:
        with GraderPool(audits=True) as pool:
            for row, place in missing:
                completion, doc = responses[row][place], docs[row]
                pool.submit(
                    (row, place, "grade"), GradeJob(completion=completion, target=doc["answer"])
                )
                # the authors' rule reads the prompt too; a chat template adds no boxes to it
                asked, solution = doc["system"] + doc["user"], doc["solution"] or ""
                audit = AuditJob(
                    prompt=asked, completion=completion, target=doc["answer"], solution=solution
                )
                pool.submit((row, place, "audit"), audit)
            results: dict[tuple[int, int, str], Any] = dict(pool.drain())
        for row, place in missing:
            graded[row][place] = as_text(results[row, place, "grade"], results[row, place, "audit"])
    return graded


def metrics(doc: Mapping[str, Any], results: Sequence[Sequence[str]]) -> dict[str, float]:
    """Grades of one document as lm-eval's metrics, each the mean over repeats.

    `graded` is the share of completions whose answer was compared with the gold answer, right or wrong. What other
    graders say is in the sample logs: `mless table --audit` shows it.
    """
    verdicts = [json.loads(graded)["verdict"] for graded in results[0]]
    return {
        "accuracy": fmean(verdict == "correct" for verdict in verdicts),
        "graded": fmean(verdict in GRADED for verdict in verdicts),
        "truncated": fmean(verdict == "truncated" for verdict in verdicts),
    }
