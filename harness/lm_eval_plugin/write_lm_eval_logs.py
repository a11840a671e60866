"""A finished journal as lm-eval's own results and sample logs.

lm-eval evaluates the recorded completions again: an lm-eval model returns what the journal holds,
and the tasks' grading filter takes the grades that come with it. So lm-eval itself writes the files
and nothing new is computed.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

from lm_eval import evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

# private: no public function reads a task's YAML with `!function` values without its data
from lm_eval.tasks._yaml_loader import load_yaml
from lm_eval.utils import sanitize_model_name

from harness import resources
from harness.constants import JsonObject
from harness.errors import JournalError
from harness.lm_eval_plugin.hooks import as_dataset
from harness.runs import versions_and_hashes
from harness.runs.records import Arm, Identity, Sample, Score, StoredPrompt

GENERATION_FACTS = (
    "finish_reason",
    "prompt_tokens",
    "prompt_token_sha256",
    "completion_tokens",
    "seed",
)
"""The facts of a sample that lm-eval does not record."""


class Completion(str):
    """A recorded completion with its grades as JSON text, for `hooks.grade_responses`.

    lm-eval passes it on unchanged.
    """

    graded: str


SampleIndex = Mapping[tuple[str, str, int], Sample]
"""The samples by task, problem and index within the task."""


class Replay(LM):  # type: ignore[misc]
    """An lm-eval model that generates nothing: it returns the recorded completions."""

    tokenizer_name = ""  # names lm-eval's cache of requests, which is off
    loglikelihood = loglikelihood_rolling = None  # abstract in lm-eval, but unused by our tasks

    def __init__(
        self, prompts: Iterable[StoredPrompt], samples: SampleIndex, scores: Mapping[str, Score]
    ) -> None:
        super().__init__()
        self.samples, self._scores = samples, scores
        self._chats = {
            (prompt.doc["system"], prompt.doc["user"]): prompt.prompt for prompt in prompts
        }

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The recorded completions; the n-th request for a problem gets its n-th sample."""
        counts: Counter[tuple[str, str]] = Counter()
        completions: list[str] = []
        for instance in requests:
            problem = str(instance.task_name), str(instance.doc["id"])
            sample = self.samples[(*problem, counts[problem])]
            completion = Completion(sample.completion)
            completion.graded = json.dumps(self._scores[sample.key].graded())
            completions.append(completion)
            counts[problem] += 1
        return completions

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The prompt as it was run."""
        turns = {turn["role"]: turn["content"] for turn in chat_history}
        return str(self._chats[turns.get("system", ""), turns["user"]])


def export(
    folder: Path,
    identity: Identity,
    config: JsonObject,
    prompts: Sequence[StoredPrompt],
    samples: Sequence[Sample],
    scores: Mapping[str, Score],
) -> list[JsonObject]:
    """Write lm-eval's results JSON and sample logs; return an entry of each task for the receipt.

    Args:
        folder: A run folder.
        identity: Its journal's first line.
        config: The run config of its last session.
        prompts: Its prompts.
        samples: Its samples, with replicates; none is missing.
        scores: The score of every sample, by its key.

    While lm-eval evaluates, about a second, the process has another `sys.stderr`. Output of another
    thread is then lost, and two threads may not export at once. lm-eval draws a few numbers from
    `random`, and seeds nothing.

    Raises:
        JournalError: lm-eval could not write a complete file.
    """
    # lm-eval has repeats but no replicates, so replicates are only in the journal; a draw of
    # examples is a task of its own, which counts its samples from 0
    draws = (config.get("fewshot") or {}).get("draws", 1)
    index = {
        (sample.task, sample.problem_id, sample.sample_index // draws): sample
        for sample in samples
        if sample.replicate == 0
    }
    calls: dict[tuple[bool, str], dict[str, list[StoredPrompt]]] = {}
    for prompt in prompts:
        is_chat = prompt.layout == "chat"
        # a chat whose answer has begun needs a call for its condition: lm-eval identifies a chat by
        # its turns, which are the same under other conditions
        condition = prompt.condition if is_chat and prompt.answer_prefix else ""
        calls.setdefault((is_chat, condition), {}).setdefault(prompt.task, []).append(prompt)
    # files of an earlier export go first: beside the new ones they would be a second evaluation
    date = "20[0-9][0-9]-*"  # lm-eval's dates
    for pattern in (
        f"results_{date}.json",
        *(f"samples_{task}_{date}.jsonl" for task in identity.arms),
    ):
        for file in folder.glob(pattern):
            file.unlink()
    entries = []
    for (is_chat, _), tasks in calls.items():
        tracker = _make_tracker(folder, identity, config)
        replay = Replay(chain.from_iterable(tasks.values()), index, scores)
        results, logs = _evaluate(identity, tasks, replay, is_chat=is_chat)
        results |= _evaluation_facts(config)
        tracker.save_results_aggregated(results=results, samples=logs)
        entries += _save_logs(folder, tracker, logs, tasks)
    return entries


def _make_tracker(folder: Path, identity: Identity, config: JsonObject) -> EvaluationTracker:
    """lm-eval's writer of files, which also takes the time from here on."""
    tracker = EvaluationTracker(output_path=str(folder / "results.json"))
    label = config["model"]["label"] or identity.model.name
    facts = tracker.general_config_tracker
    facts.model_source = config["model"]["backend"]
    facts.model_name = label
    facts.model_name_sanitized = sanitize_model_name(label)
    return tracker


def _evaluation_facts(config: JsonObject) -> JsonObject:
    """What lm-eval's command adds to the results."""
    model = config["model"]
    return {
        "config": {
            "model": model["backend"],
            "model_args": {name: str(value) for name, value in model["model_args"].items()},
            "random_seed": config["seed"],
        },
        "date": time.time(),
        "git_hash": versions_and_hashes.git_revision(),
        "lm_eval_version": versions_and_hashes.package_version("lm-eval"),
    }


def _evaluate(
    identity: Identity,
    tasks: Mapping[str, Sequence[StoredPrompt]],
    replay: Replay,
    *,
    is_chat: bool,
) -> tuple[JsonObject, dict[str, list[JsonObject]]]:
    """lm-eval's results and its sample logs by task, for tasks with or without a chat template."""
    manager = TaskManager(include_defaults=False)  # reading all of lm-eval's tasks would take 10 s
    task_objects = [_make_task(task, tasks[task], identity.arms[task]) for task in tasks]
    # not simple_evaluate: it seeds random, numpy and torch for the process, and runs git in the
    # working folder
    with redirect_stderr(StringIO()):  # lm-eval draws a progress bar for each task
        results = evaluate(
            lm=replay,
            task_dict=manager.load(task_objects),
            apply_chat_template=is_chat,
            log_samples=True,
        )
    logs = results.pop("samples")
    for task, lines in logs.items():
        for line in lines:
            line["generations"] = []
            for index in range(identity.arms[task].samples):
                sample = replay.samples[task, line["doc"]["id"], index]
                facts = {name: getattr(sample, name) for name in GENERATION_FACTS}
                line["generations"].append(facts)
    return results, logs


def _save_logs(
    folder: Path,
    tracker: EvaluationTracker,
    logs: Mapping[str, list[JsonObject]],
    tasks: Mapping[str, Sequence[StoredPrompt]],
) -> list[JsonObject]:
    """Write the sample logs beside the results; return the entry of each task."""
    entries = []
    for task, prompts in tasks.items():
        tracker.save_results_samples(task_name=task, samples=logs[task])
        log = folder / f"samples_{task}_{tracker.date_id}.jsonl"
        # lm-eval only warns when it cannot write
        if not log.exists() or log.read_bytes().count(b"\n") != len(prompts):
            raise JournalError(
                f"{log} could not be written whole: free some space and run the same command again."
            )
        entry = {
            "task": task,
            "condition": prompts[0].condition,
            "samples": log.name,
            "results": f"results_{tracker.date_id}.json",
        }
        entries.append(entry)
    return entries


def _make_task(name: str, prompts: Sequence[StoredPrompt], arm: Arm) -> Any:
    """The shipped task template with the run's own documents."""

    class Recorded(ConfigurableTask):  # type: ignore[misc]
        """Has the run's documents; with a `custom_dataset` in the config lm-eval would warn."""

        def download(self, *_: Any, **__: Any) -> None:
            self.dataset = {"test": as_dataset([prompt.doc for prompt in prompts])}

    # lm-eval must filter and score as in the shipped tasks, so only the documents are the run's
    template = load_yaml(resources.folder("tasks") / "math500" / "_math500.yaml")
    settings = {"repeats": arm.samples, "generation_kwargs": arm.sampling.lm_eval()}
    return Recorded(config={**template, "task": name, **settings})
