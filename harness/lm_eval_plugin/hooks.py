"""The functions that the task YAMLs name: adapters from lm-eval's calls to ours.

lm-eval calls a `custom_dataset` with `--metadata` and the model arguments merged. Keys that are not
ours are ignored.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from statistics import fmean
from typing import Any

import datasets
from msgspec.structs import asdict

from harness.constants import BASELINE, DEFAULT_SEED, MAX_GEN_TOKS, STUDY_CONDITION
from harness.errors import ConfigError
from harness.experiment.conditions import CLASS_BY_KEY, NAMED_CONDITIONS, Condition, as_condition
from harness.experiment.problems import open_dataset
from harness.experiment.prompts.checked_prompts import build_checked_prompts
from harness.experiment.prompts.prompt import Layout, PromptSettings, make_document
from harness.experiment.prompts.template_parser import find_columns
from harness.experiment.prompts.tokenizer import ModelTokenizer
from harness.grading import GRADED_VERDICTS, GradeJob, GraderPool

DocumentsBySplit = dict[str, datasets.Dataset]
"""What lm-eval expects of a `custom_dataset`. Our tasks have the split `test` only."""


def _make_documents(
    condition: Condition, layout: Layout | None = None, /, **metadata: Any
) -> DocumentsBySplit:
    """The documents of a condition, checked in every layout that lm-eval may use.

    Args:
        condition: The condition.
        layout: The only layout. None: raw, and chat if the model has a chat template, because
            lm-eval does not say whether it will apply the template.
        **metadata: What lm-eval gives: see the module.

    Raises:
        ConfigError: the condition begins the answer, which a task of lm-eval cannot do.
        PromptMismatchError: a prompt breaks a guarantee in one of the layouts.
    """
    dataset = open_dataset("math500", find_columns(condition.as_entry()))
    model_tokenizer = ModelTokenizer.from_arguments(metadata)
    layouts = [layout or Layout.RAW]
    if layout is None and model_tokenizer is not None and model_tokenizer.template:
        layouts.append(Layout.CHAT)
    for checked_layout in layouts:
        (condition_prompts,) = build_checked_prompts(
            dataset.problems,
            [condition],
            PromptSettings(layout=checked_layout),
            model_tokenizer,
            max_gen_toks=int(metadata.get("max_gen_toks", MAX_GEN_TOKS)),
        )
    # The documents are made of the prompts of the last layout, because raw and chat prompts have
    # the same segments and turns.
    if condition_prompts.prompts and condition_prompts.prompts[0].requested_prompt.answer_segments:
        raise ConfigError(
            "A task of lm-eval cannot begin the answer: use another placement, or `mless run`."
        )
    documents = [
        make_document(problem, built_prompt.requested_prompt, condition, condition_prompts.layout)
        for problem, built_prompt in zip(dataset.problems, condition_prompts.prompts, strict=True)
    ]
    # made of a list of documents, a dataset would only have the keys of the first document
    columns = dict.fromkeys(chain.from_iterable(documents))
    values_by_column = {
        column: [document.get(column) for document in documents] for column in columns
    }
    return {"test": datasets.Dataset.from_dict(values_by_column)}


wo, mless, mful, random_sentence = (
    partial(_make_documents, condition) for condition in NAMED_CONDITIONS.values()
)
"""Documents of `math500_wo`, `math500_mless`, `math500_mful` and `math500_random`."""
wo_as_published, mless_as_published = (
    partial(_make_documents, as_condition(name), Layout.AS_PUBLISHED)
    for name in (BASELINE, STUDY_CONDITION)
)
"""Documents of `math500_wo_as_published` and `math500_mless_as_published`."""


def filler(**metadata: Any) -> DocumentsBySplit:
    """Documents of `math500_filler`.

    The metadata have the filler and its placement or template, by the keys of a run config's
    condition. Without a filler it is that of the study, except in a template without a place for
    it.

    Raises:
        ConfigError: the filler is drawn anew for each sample.
    """
    condition_keys = {*CLASS_BY_KEY, "count", "fresh", "placement", "template"}
    condition_settings = {key: value for key, value in metadata.items() if key in condition_keys}
    if condition_settings.get("fresh") == "sample":
        raise ConfigError("fresh: a task has one prompt for all samples: expected problem.")
    has_filler = any(key in CLASS_BY_KEY for key in condition_settings)
    # without a template, the placement says where the filler stands
    if not has_filler and "{filler}" in condition_settings.get("template", "{filler}"):
        condition_settings["unit"] = "/"  # the filler of the study
        has_filler = True
    # a condition without a filler has no seed
    if has_filler:
        condition_settings["seed"] = metadata.get("placement_seed", DEFAULT_SEED)
    return _make_documents(as_condition({"name": "filler", **condition_settings}), **metadata)


def grade_responses(
    responses: Sequence[Sequence[Any]], docs: Sequence[Mapping[str, Any]]
) -> list[list[str]]:
    """Grade and audit every repeat of every document.

    Grade and audit are one JSON text, which sample logs store unchanged.

    Args:
        responses: The completions of each document.
        docs: The documents. Those of another task need only an `answer`.
    """
    grade_texts = [[""] * len(completions) for completions in responses]
    with GraderPool(with_audit=True) as pool:
        for doc_index, (completions, doc) in enumerate(zip(responses, docs, strict=True)):
            for repeat_index, completion in enumerate(completions):
                # The audit needs the prompt, because the rule of the study's authors reads boxes in
                # it too. Here it lacks what a chat template adds, which has no box.
                prompt = doc.get("system", "") + doc.get("user", "")
                pool.submit(
                    (doc_index, repeat_index),
                    GradeJob.of(doc, completion=completion, prompt=prompt),
                )
        for (doc_index, repeat_index), grade in pool.drain():
            grade_texts[doc_index][repeat_index] = json.dumps(asdict(grade))
    return grade_texts


def metrics(doc: Mapping[str, Any], results: Sequence[Sequence[str]]) -> dict[str, float]:
    """The grades of a document as lm-eval's metrics, each the mean over repeats.

    `graded` is the share of completions whose answer was compared with the gold answer, right or
    wrong. The verdicts of other graders are in the sample logs, and `mless table --audit` shows
    them.
    """
    verdicts = [json.loads(grade_text)["verdict"] for grade_text in results[0]]
    return {
        "accuracy": fmean(verdict == "correct" for verdict in verdicts),
        "graded": fmean(verdict in GRADED_VERDICTS for verdict in verdicts),
        "truncated": fmean(verdict == "truncated" for verdict in verdicts),
    }
