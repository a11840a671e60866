"""A finished journal as lm-eval's own results and sample logs: lm-eval evaluates the recorded completions again.

Nothing is computed here that is not in the folder: an lm-eval model hands out what the journal holds, and the tasks'
grading filter takes the grades that come with it. So the files are lm-eval's own, written by lm-eval.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import LM

from harness import resources
from harness.errors import JournalError
from harness.runs import versions_and_hashes
from harness.runs.records import Arm, Identity, Prompt, Sample, Score

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance


class Completion(str):
    """A recorded completion with its grades as JSON text. lm-eval hands it on to `hooks.grade_responses` unchanged."""

    graded: str


class Replay(LM):  # type: ignore[misc]
    """An lm-eval model that generates nothing: it returns what was recorded."""

    tokenizer_name = ""  # names lm-eval's cache of requests, which is off
    loglikelihood = loglikelihood_rolling = None  # never asked for

    def __init__(
        self,
        prompts: Iterable[Prompt],
        samples: Mapping[tuple[str, str, int], Sample],
        scores: Mapping[str, Score],
    ) -> None:
        super().__init__()
        self._samples, self._scores = samples, scores
        self._chats = {
            (prompt.doc["system"], prompt.doc["user"]): prompt.prompt for prompt in prompts
        }

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The recorded completions; the n-th time that a request is asked it is the n-th sample."""
        asked: Counter[tuple[str, str]] = Counter()
        found: list[str] = []
        for instance in requests:
            place = str(instance.task_name), str(instance.doc["id"])
            one = self._samples[(*place, asked[place])]
            completion = Completion(one.completion)
            completion.graded = json.dumps(self._scores[one.key].graded())
            found.append(completion)
            asked[place] += 1
        return found

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The prompt as it was run."""
        turns = {turn["role"]: turn["content"] for turn in chat_history}
        return str(self._chats[turns.get("system", ""), turns["user"]])


def export(
    folder: Path,
    identity: Identity,
    config: Mapping[str, Any],
    prompts: Sequence[Prompt],
    everything: Sequence[Sample],
    scores: Mapping[str, Score],
) -> list[dict[str, Any]]:
    """Write lm-eval's results JSON and sample logs; return one entry a task for the receipt.

    Args:
        folder: A run folder.
        identity: Its journal's first line.
        config: The run config as it was last used.
        prompts: Its prompts.
        everything: Its samples, replicates included; none is missing.
        scores: The score of every sample, by its key.

    While lm-eval evaluates, about a second, the whole process has another `sys.stderr`. What another thread writes
    meanwhile is lost, and two threads may not export at once. lm-eval draws a few numbers from `random`, and seeds
    nothing.

    Raises:
        JournalError: lm-eval could not write a file whole.
    """
    # lm-eval knows repeats but no replicates: those are in the journal only
    # a draw of examples is a task of its own, which counts its samples from 0
    each = {task: arm.samples for task, arm in identity.arms.items()}
    samples = {
        (s.task, s.problem_id, s.sample_index % each[s.task]): s
        for s in everything
        if s.replicate == 0
    }
    calls: dict[tuple[bool, str], dict[str, list[Prompt]]] = {}
    for prompt in prompts:
        chat = prompt.layout == "chat"
        # a chat whose answer has begun is in a call of its own: lm-eval knows a chat by its turns alone
        own = prompt.condition if chat and prompt.answer_prefix else ""
        calls.setdefault((chat, own), {}).setdefault(prompt.task, []).append(prompt)
    dated = "20[0-9][0-9]-*"  # as lm-eval dates its files
    for name in (
        f"results_{dated}.json",
        *(f"samples_{task}_{dated}.jsonl" for task in identity.arms),
    ):
        for old in folder.glob(name):
            old.unlink()
    return [
        entry
        for (chat, _), tasks in calls.items()
        for entry in _evaluate(folder, identity, config, tasks, samples, scores, chat=chat)
    ]


def _evaluate(
    folder: Path,
    identity: Identity,
    config: Mapping[str, Any],
    tasks: Mapping[str, Sequence[Prompt]],
    samples: Mapping[tuple[str, str, int], Sample],
    scores: Mapping[str, Score],
    *,
    chat: bool,
) -> list[dict[str, Any]]:
    """One call for all tasks with, or all without, a chat template; lm-eval's files as its own CLI writes them."""
    from lm_eval import evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import sanitize_model_name

    tracker = EvaluationTracker(output_path=str(folder / "results.json"))
    manager = TaskManager(include_defaults=False)  # reading all of lm-eval's tasks would take 10 s
    loaded = manager.load([_task(task, rows, identity.arms[task]) for task, rows in tasks.items()])
    replay = Replay((row for rows in tasks.values() for row in rows), samples, scores)
    # not simple_evaluate: it seeds random, numpy and torch for the whole process, and asks git about the working folder
    with redirect_stderr(StringIO()):  # lm-eval draws a progress bar for each task
        results = evaluate(lm=replay, task_dict=loaded, apply_chat_template=chat, log_samples=True)
    logged = results.pop("samples")
    model, label = config["model"], config["model"]["label"] or identity.model.name
    results |= {
        "config": {
            "model": model["backend"],
            "model_args": {name: str(value) for name, value in model["model_args"].items()},
            "random_seed": config["seed"],
        },
        "date": time.time(),
        "git_hash": versions_and_hashes.git_revision(),
        "lm_eval_version": versions_and_hashes.package_version("lm-eval"),
    }
    tracker.general_config_tracker.model_source = model["backend"]
    tracker.general_config_tracker.model_name = label
    tracker.general_config_tracker.model_name_sanitized = sanitize_model_name(label)
    beside = ("finish_reason", "prompt_tokens", "prompt_token_sha256", "completion_tokens", "seed")
    for task, lines in logged.items():
        for line in lines:
            of = [
                samples[task, line["doc"]["id"], index]
                for index in range(identity.arms[task].samples)
            ]
            line["generations"] = [
                {name: getattr(sample, name) for name in beside} for sample in of
            ]
    tracker.save_results_aggregated(results=results, samples=logged)
    entries = []
    for task, prompts in tasks.items():
        tracker.save_results_samples(task_name=task, samples=logged[task])
        log = folder / f"samples_{task}_{tracker.date_id}.jsonl"
        if not log.exists() or log.read_bytes().count(b"\n") != len(
            prompts
        ):  # lm-eval only warns when it cannot write
            raise JournalError(
                f"{log} could not be written whole: free some space and run the same command again."
            )
        entries.append(
            {
                "task": task,
                "condition": prompts[0].condition,
                "layout": prompts[0].layout,
                "samples": log.name,
                "results": f"results_{tracker.date_id}.json",
                "prompts_sha256": _hash_all([prompt.prompt_sha256 for prompt in prompts]),
                "prompt_tokens_sha256": _hash_all(
                    [prompt.prompt_token_sha256 for prompt in prompts]
                ),
            }
        )
    return entries


def _task(name: str, prompts: Sequence[Prompt], arm: Arm) -> Any:
    """The shipped task template with the run's own documents."""
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

    # private: nothing public reads a task's YAML with its `!function` values without loading its data too
    from lm_eval.tasks._yaml_loader import load_yaml

    class Recorded(ConfigurableTask):  # type: ignore[misc]
        """Takes its documents from here; lm-eval warns of a `custom_dataset` in the config, for every task."""

        def download(self, *_: Any, **__: Any) -> None:
            self.dataset = {"test": Dataset.from_list([prompt.doc for prompt in prompts])}

    template = load_yaml(resources.folder("tasks") / "math500" / "_math500.yaml")
    asked = {"repeats": arm.samples, "generation_kwargs": arm.sampling.lm_eval()}
    return Recorded(config={**template, "task": name, **asked})


def _hash_all(hashes: Sequence[str | None]) -> str | None:
    return (
        None if None in hashes else hashlib.sha256("\n".join(map(str, hashes)).encode()).hexdigest()
    )
