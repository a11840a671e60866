"""Twelve tasks of lm-eval, each from another of its folders, as lm-eval asks them and as `mless tasks --wrap` does.

Their documents are written here, in the schemas of the real ones: no hub is needed. The prompts of the condition `wo`
must be lm-eval's own, by its own prompt hash. Those of `mless` have the filler before the question, and nothing else.
`python -m tests.lm_eval_plugin.wrapped_tasks` prints the table of docs/lm_eval_tasks.md.
"""

import json
import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lm_eval
import yaml
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from harness.constants import SEPARATOR
from harness.experiment.tokenizer import encode, load_tokenizer
from harness.lm_eval_plugin.task_folders import write_wrapped
from tests.make import TOY_MODEL

Documents = list[dict[str, Any]]

ASKED = [
    ("What is 17 + 25?", "42"),
    ("A box holds 12 eggs. How many eggs do 5 boxes hold?", "60"),
    ("What is half of 96?", "48"),
    ("How many days have 3 weeks?", "21"),
    ("A train of 7 coaches has 30 seats in each. How many seats is that?", "210"),
]
OTHERS = ["7", "8", "9"]


def _all_splits(docs: Documents, *splits: str) -> dict[str, Documents]:
    return dict.fromkeys(splits, docs)


def _eq_bench(question: str, answer: str) -> dict[str, Any]:
    scale = str(
        {f"emotion{i}": f"Joy{i}" for i in range(1, 5)}
        | {f"emotion{i}_score": i for i in range(1, 5)}
    )
    return {
        "prompt": f"{question} (It is {answer}.) {{{{ no template }}}}",
        "reference_answer_fullscale": scale,
    }


def _coqa(question: str, answer: str) -> dict[str, Any]:
    said = {"input_text": ["Is this a sum?", question], "turn_id": [1, 2]}
    return {
        "id": question,
        "story": "Two pupils count.",
        "questions": said,
        "answers": {"input_text": ["yes", answer]},
    }


def _drop(number: int, question: str, answer: str) -> dict[str, Any]:
    date = {"day": "", "month": "", "year": ""}
    one = {"number": answer, "date": date, "spans": ["none"]}
    more = {"number": [answer], "date": [date], "spans": [["none"]]}
    texts = {
        "query_id": str(number),
        "section_id": "1",
        "passage": "Two pupils count.",
        "question": question,
    }
    return {**texts, "answer": one, "validated_answers": more}


DOCUMENTS: dict[str, dict[str, Documents]] = {
    "gsm8k": _all_splits(
        [{"question": q, "answer": f"#### {a}"} for q, a in [*ASKED, *ASKED[:2]]], "train", "test"
    ),
    "bbh_cot_fewshot_boolean_expressions": _all_splits(
        [{"input": f"not {value} or {value} is", "target": value} for value in ("True", "False")],
        "test",
    ),
    "minerva_math_algebra": _all_splits(
        [
            {"problem": q, "level": "1", "type": "Sum", "solution": f"It is $\\boxed{{{a}}}$."}
            for q, a in ASKED
        ],
        "train",
        "test",
    ),
    "mmlu_pro_math": _all_splits(
        [
            {
                "question": q,
                "options": [a, *OTHERS],
                "answer": "A",
                "category": "math",
                "cot_content": f"A: Let's think step by step. It is {a}. The answer is (A).",
            }
            for q, a in ASKED
        ],
        "validation",
        "test",
    ),
    "drop": _all_splits([_drop(n, q, a) for n, (q, a) in enumerate(ASKED)], "train", "validation"),
    "coqa": _all_splits([_coqa(q, a) for q, a in ASKED], "train", "validation"),
    "nq_open": _all_splits(
        [{"question": q.rstrip("?"), "answer": [a]} for q, a in ASKED], "train", "validation"
    ),
    "mgsm_direct_en": _all_splits(
        [
            {"question": q, "answer": f"It is {a}." if place % 2 else None, "answer_number": int(a)}
            for place, (q, a) in enumerate(ASKED)
        ],
        "train",
        "test",
    ),
    "gsm8k_llama": _all_splits(
        [{"question": q, "answer": f"#### {a}"} for q, a in ASKED], "train", "test"
    ),
    "arc_challenge_chat": _all_splits(
        [
            {
                "question": q,
                "choices": {"text": [a, *OTHERS], "label": list("ABCD")},
                "answerKey": "A",
            }
            for q, a in ASKED
        ],
        "train",
        "validation",
        "test",
    ),
    "eq_bench": _all_splits([_eq_bench(q, a) for q, a in ASKED], "validation"),
    "gpqa_main_cot_zeroshot": _all_splits(
        [
            {
                "Question": q,
                "Correct Answer": a,
                **{f"Incorrect Answer {n}": o for n, o in enumerate(OTHERS, start=1)},
            }
            for q, a in ASKED
        ],
        "train",
    ),
}
"""Per task its documents by split."""

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain, 2 examples": {"num_fewshot": 2},
    "chat": {"apply_chat_template": True, "fewshot_as_multiturn": False},
    "chat, examples as turns": {
        "apply_chat_template": True,
        "fewshot_as_multiturn": True,
        "num_fewshot": 2,
    },
}
"""How lm-eval can be told to ask: arguments of `lm_eval.simple_evaluate`."""


class Silent(LM):
    """A model that always says the same, with the toy model's chat template."""

    tokenizer_name = TOY_MODEL

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = load_tokenizer(TOY_MODEL)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        return ["The final answer is 42." for _ in requests]

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )


def local_data(name: str, folder: Path) -> str:
    """The keys of a task's YAML that give it the documents of this module, which are written into the folder."""
    files = {}
    for split, docs in DOCUMENTS[name].items():
        files[split] = str(folder / f"{name}-{split}.json")
        Path(files[split]).write_text("".join(f"{json.dumps(doc)}\n" for doc in docs))
    kwargs = {"data_files": files, "cache_dir": str(folder / "cache")}
    return f"dataset_path: json\ndataset_name: null\ndataset_kwargs: {json.dumps(kwargs)}\n"


def write_both(name: str, folder: Path) -> dict[str, str]:
    """Write lm-eval's own task and the wrapped ones into folders of their own, all with local documents.

    Returns:
        The `filler` that `mless` puts before the question, and the `stock_file` of the task.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_wrapped(folder / name, name, "wo,mless")
    data = local_data(name, folder)
    for path in (folder / name).glob("*.yaml"):
        path.write_text(path.read_text() + data)
    wrapped = (folder / name / f"{name}_mless.yaml").read_text()
    settings = yaml.safe_load(wrapped.replace("!function", ""))
    own = Path(lm_eval.__file__).parent / "tasks" / settings["stock_file"]
    (folder / f"{name}.yaml").write_text(f"include: {own}\ntask: {name}\n{data}")
    return {key: str(settings[key]) for key in ("filler", "stock_file")}


def evaluate(names: list[str], manager: TaskManager, model: Silent, **way: Any) -> dict[str, Any]:
    """What lm-eval returns for these tasks, stock and wrapped."""
    tasks: list[Any] = [task for name in names for task in (name, f"{name}_wo", f"{name}_mless")]
    found = lm_eval.simple_evaluate(
        model=model, tasks=tasks, task_manager=manager, log_samples=True, bootstrap_iters=0, **way
    )
    assert found is not None
    return dict(found)


def compare(names: list[str]) -> list[dict[str, Any]]:
    """One row per task: how many documents, and for how many of them every way of asking is lm-eval's own under `wo`.

    Raises:
        AssertionError: a score or a stop string differs, or under `mless` anything but the filler before the question.
    """
    rows, model = [], Silent()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        written = {name: write_both(name, folder) for name in names}
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        own_tasks = manager.load(names)["tasks"]
        asked = {
            way: evaluate(names, manager, model, **given)["samples"] for way, given in WAYS.items()
        }
    for name in names:
        filler = written[name]["filler"]
        unequal, tokens = set[int](), set[int]()
        for way, samples in asked.items():
            stock, wo, mless = (
                by_document(samples[task]) for task in (name, f"{name}_wo", f"{name}_mless")
            )
            for own, ours, filled in zip(stock, wo, mless, strict=True):
                if own["prompt_hash"] != ours["prompt_hash"]:
                    unequal.add(own["doc_id"])
                (text, settings), *others = (one["arguments"][0] for one in (own, ours, filled))
                where = f"{name}, {way}"
                assert all(other == settings for _, other in others), f"{where}: other stop strings"
                unlike = [
                    key
                    for key in own.keys() - {"arguments", "prompt_hash"}
                    if own[key] != ours[key]
                ]
                assert not unlike, f"{where}: other {unlike}"
                before, *rest = others[1][0].split(filler)
                assert len(rest) == 1, f"{where}: the filler stands there {len(rest)} times"
                (after,) = rest
                assert before + after == text, f"{where}: more than the filler differs"
                assert after.startswith(own_tasks[name].doc_to_text(own["doc"])), (
                    f"{where}: not before the question"
                )
                ends = len(before), len(before) + len(filler.removesuffix(SEPARATOR))
                _, spans = encode(others[1][0], model.tokenizer)
                tokens.add(sum(ends[0] <= start < end <= ends[1] for start, end in spans))
        counts = ", ".join(map(str, sorted(tokens)))
        lm_folder = written[name]["stock_file"].partition("/")[0]
        rows.append(
            {
                "folder": lm_folder,
                "task": name,
                "documents": len(stock),
                "equal": len(stock) - len(unequal),
            }
        )
        rows[-1]["filler tokens"] = counts
    return rows


def by_document(samples: Documents) -> Documents:
    """One sample per document: a task with several filters logs each as often."""
    return list({sample["doc_id"]: sample for sample in samples}.values())


def as_table(rows: list[dict[str, Any]]) -> str:
    lines = [f"| {' | '.join(rows[0])} |", f"|{' --- |' * len(rows[0])}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row.values()))} |" for row in rows)])


if __name__ == "__main__":
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    print(as_table(compare(sys.argv[1:] or list(DOCUMENTS))))
