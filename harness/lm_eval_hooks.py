"""The functions that the task YAMLs name: adapters from lm-eval's calls to ours, no logic of their own.

lm-eval calls a `custom_dataset` with `--metadata` and the model arguments merged; what is not ours is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import datasets

from harness.conditions import DEFAULT_SEED, STUDY_COUNT, Condition, named_condition
from harness.config import ConditionConfig
from harness.datasets import load_math500
from harness.documents import MAX_GEN_TOKS, Model, build_documents, check_documents
from harness.errors import ConfigError
from harness.grading import grade
from harness.grading.stock import stock_math_verify
from harness.prompts import Layout

Documents = dict[str, datasets.Dataset]


def wo(**metadata: Any) -> Documents:
    """Documents of `math500_wo`."""
    return _documents(named_condition("wo"), metadata)


def mless(**metadata: Any) -> Documents:
    """Documents of `math500_mless`."""
    return _documents(named_condition("mless"), metadata)


def mful(**metadata: Any) -> Documents:
    """Documents of `math500_mful`."""
    return _documents(named_condition("mful"), metadata)


def random_sentence(**metadata: Any) -> Documents:
    """Documents of `math500_random`."""
    return _documents(named_condition("random"), metadata)


def wo_as_published(**metadata: Any) -> Documents:
    """Documents of `math500_wo_as_published`."""
    return _documents(named_condition("wo"), metadata, as_published=True)


def mless_as_published(**metadata: Any) -> Documents:
    """Documents of `math500_mless_as_published`."""
    return _documents(named_condition("mless"), metadata, as_published=True)


def filler(**metadata: Any) -> Documents:
    """Documents of `math500_filler`: unit or token_ids, count, separator, placement, placement_seed from metadata."""
    given: dict[str, Any] = {
        k: metadata[k] for k in ("unit", "token_ids", "count", "separator", "placement") if k in metadata
    }
    if "unit" not in given and "token_ids" not in given:
        given["unit"] = "/"
    given.setdefault("count", STUDY_COUNT)
    condition = ConditionConfig.parse({"name": "filler", "seed": metadata.get("placement_seed", DEFAULT_SEED), **given})
    return _documents(condition, metadata)


def grade_responses(responses: Sequence[Sequence[str]], docs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Grade every repeat of every document; a grade travels as JSON, which sample logs keep as it is."""
    return [[_graded(completion, doc) for completion in repeats] for repeats, doc in zip(responses, docs, strict=True)]


def metrics(doc: Mapping[str, Any], results: Sequence[Sequence[str]]) -> dict[str, float]:
    """Grades of one document as lm-eval's metrics, each the mean over repeats."""
    grades = [json.loads(graded) for graded in results[0]]
    return {
        "correct": fmean(g["verdict"] == "correct" for g in grades),
        "math_verify": fmean(g["math_verify"] for g in grades),
        "no_box": fmean(g["verdict"] == "no_box" for g in grades),
        "truncated": fmean(g["verdict"] == "truncated" for g in grades),
    }


def _documents(condition: Condition, metadata: Mapping[str, Any], *, as_published: bool = False) -> Documents:
    dataset = load_math500()
    model = Model.from_arguments(metadata)
    layout = Layout.AS_PUBLISHED if as_published else Layout.RAW
    if model is not None:
        checked = (layout,) if as_published else _layouts(metadata, model)
        budget = int(metadata.get("max_gen_toks", MAX_GEN_TOKS))
        check_documents(dataset, condition, checked, model, max_gen_toks=budget)
    documents = build_documents(dataset, condition, layout, model=model)
    return {"test": datasets.Dataset.from_list(documents)}


def _layouts(metadata: Mapping[str, Any], model: Model) -> tuple[Layout, ...]:
    """The layouts to check: lm-eval does not say whether it will apply the chat template, so both unless told."""
    wanted = metadata.get("layout")
    if wanted is None:
        return model.layouts()
    if wanted not in ("raw", "chat"):
        raise ConfigError(f"metadata `layout` must be raw or chat, got {wanted!r}. Leave it out to check both.")
    return (Layout(wanted),)


def _graded(completion: str, doc: Mapping[str, Any]) -> str:
    graded = grade(completion, doc["answer"], finish_reason=getattr(completion, "finish_reason", None))
    stock = stock_math_verify(completion, doc["solution"] or f"\\boxed{{{doc['answer']}}}")
    return json.dumps({"verdict": graded.verdict, "answer": graded.answer, "math_verify": int(stock)})
