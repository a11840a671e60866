"""Twelve tasks of lm-eval from twelve of its folders, stock and wrapped by `mless tasks --wrap`.

Their documents are made here, in the schemas of the real ones, so no hub is needed.
"""

import json
from functools import cache
from pathlib import Path

import lm_eval
import yaml
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from harness.experiment.prompts.tokenizer import load_tokenizer
from harness.lm_eval_plugin.task_folders import write_wrapped_tasks
from tests.make import ROOT, TOY_MODEL, read_data, write_records

SETTINGS = read_data("lm_eval_layouts")
QUESTIONS = SETTINGS["questions"]


@cache
def _read_schemas(question, answer):
    """The splits of each task, and its document for a question."""
    text = (ROOT / "tests/data/lm_eval_documents.yaml").read_text()
    return yaml.safe_load(text.replace("QUESTION", question).replace("ANSWER", answer))


def _make_documents():
    documents = {}
    for name, schema in _read_schemas(*QUESTIONS[0]).items():
        questions = SETTINGS["of_tasks"].get(name, QUESTIONS)
        of_task = [_read_schemas(*question)[name]["document"] for question in questions]
        documents[name] = dict.fromkeys(schema["splits"], of_task)
    for document in documents["mgsm_direct_en"]["test"][::2]:
        document["answer"] = None  # the task words a question without a solution in another way
    return documents


DOCUMENTS = _make_documents()
"""The documents of each task, by split."""


class Answering(LM):
    """A model that answers as a function says, with the toy model's chat template."""

    tokenizer_name = TOY_MODEL

    def __init__(self, answer=lambda request: "The final answer is 42."):
        super().__init__()
        self.tokenizer = load_tokenizer(TOY_MODEL)
        self.answer = answer

    def generate_until(self, requests, disable_tqdm=False):
        return [*map(self.answer, requests)]

    def loglikelihood(self, requests, disable_tqdm=False):
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )


def open_manager(folder, **metadata):
    """lm-eval's manager of the tasks of one folder, without the tasks that lm-eval brings."""
    return TaskManager(include_path=str(folder), include_defaults=False, metadata=metadata)


def local_data(name, folder):
    """Write a task's documents into a folder; return the YAML keys that make the task read them."""
    files = {}
    for split, documents in DOCUMENTS[name].items():
        files[split] = str(folder / f"{name}-{split}.json")
        write_records(Path(files[split]), documents)
    kwargs = {"data_files": files, "cache_dir": str(folder / "cache")}
    return f"dataset_path: json\ndataset_name: null\ndataset_kwargs: {json.dumps(kwargs)}\n"


def read_task(path):
    """The keys of a task's file; a function is its name."""
    return yaml.safe_load(path.read_text().replace("!function ", ""))


def write_both(name, folder):
    """Write a task of lm-eval and its wrapped ones into a folder, all with local documents.

    Returns:
        The keys of the wrapped task of `mless`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_wrapped_tasks(folder / name, name, "wo,mless")
    data = local_data(name, folder)
    for path in (folder / name).glob("*.yaml"):
        path.write_text(path.read_text() + data)
    keys = read_task(folder / name / f"{name}_mless.yaml")
    stock_path = Path(lm_eval.__file__).parent / "tasks" / keys["stock_file"]
    (folder / f"{name}.yaml").write_text(f"include: {stock_path}\ntask: {name}\n{data}")
    return keys


def list_variants(name):
    """The names of a task of lm-eval and of its wrapped ones."""
    return name, f"{name}_wo", f"{name}_mless"


def evaluate(names, folder, model, **options):
    """What lm-eval returns for tasks of a folder."""
    return lm_eval.simple_evaluate(
        model=model,
        tasks=[*names],
        task_manager=open_manager(folder),
        log_samples=True,
        bootstrap_iters=0,
        **options,
    )


def write_logs(names, folder, model, **options):
    """Evaluate tasks of a folder; return the sample logs that lm-eval writes, by task."""
    output = folder / "results"
    tracker = EvaluationTracker(output_path=str(output))
    results = evaluate(names, folder, model, evaluation_tracker=tracker, **options)
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    logs = {}
    for name in names:
        tracker.save_results_samples(task_name=name, samples=samples[name])
        (logs[name],) = output.rglob(f"samples_{name}_2*.jsonl")
    return logs


def by_document(samples):
    """One sample per document: a task with several filters logs each as often."""
    return list({sample["doc_id"]: sample for sample in samples}.values())
