"""One config, one experiment: documents, one loaded model, all conditions, grades, and a run folder."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import receipts, resources
from harness.conditions import Condition
from harness.config import RunConfig
from harness.datasets import Dataset
from harness.documents import Model, build_documents, check_documents
from harness.engine import Completion, load_model
from harness.errors import ModelError, RunError
from harness.figures import draw_accuracy_bars, save_figure
from harness.grading.grade import GRADER_VERSION
from harness.leaderboard import accuracy_table
from harness.prompts import Layout
from harness.records import RECEIPT, load_run
from harness.tokenization import ConditionCheck, explain_hub_error, hash_token_ids

if TYPE_CHECKING:
    from lm_eval.api.model import LM

FIGURE = "accuracy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One condition in one layout: a task for lm-eval.

    Attributes:
        task: Its name in results and logs.
        check: What its prompts look like; None where the model's tokenizer is not known.
    """

    task: str
    condition: Condition
    layout: Layout
    check: ConditionCheck | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that a run will do, before any weight is loaded."""

    config: RunConfig
    dataset: Dataset
    model: Model | None
    arms: tuple[Arm, ...]

    @property
    def requests(self) -> int:
        """Completions to generate."""
        return len(self.arms) * len(self.dataset.problems)

    def describe(self) -> str:
        """The plan as text: requests, prompt lengths, tokens."""
        budget = self.config.sampling.max_gen_toks
        lines = [
            f"model     {self.config.model.display_name} through {self.config.model.backend}",
            f"dataset   {self.dataset.name}, {len(self.dataset.problems)} problems, {self.dataset.source}",
            f"sampling  {self.config.sampling.mode}, at most {budget} tokens each",
            f"requests  {self.requests}",
        ]
        rows = [("condition", "layout", "filler", "span", "prompt tokens: least", "median", "most")]
        total = 0
        for arm in self.arms:
            if arm.check is None:
                rows.append((arm.condition.name, arm.layout, "?", "?", "?", "?", "?"))
                continue
            lengths = arm.check.prompt_tokens
            total += sum(lengths)
            low, high = arm.check.filler_span or (0, 0)
            middle = f"{statistics.median(lengths):.0f}"
            span = f"{low}-{high}" if high else "-"
            rows.append(
                (
                    arm.condition.name,
                    arm.layout,
                    str(arm.check.filler_tokens[1]),
                    span,
                    str(min(lengths)),
                    middle,
                    str(max(lengths)),
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        if total:
            lines.append(f"tokens    {total:,} in prompts, at most {self.requests * budget:,} generated")
        else:
            lines.append("tokens    unknown: name a tokenizer (--set model.arguments.tokenizer=NAME)")
        return "\n".join(lines)


def plan_run(config: RunConfig, *, limit: int | None = None) -> Plan:
    """Load data and tokenizer, build and check every prompt.

    Raises:
        HarnessError: anything about config, data, tokenizer or prompts that would spoil the run.
    """
    dataset = config.load_dataset()
    if limit is not None:
        dataset = Dataset(name=dataset.name, source=dataset.source, problems=dataset.problems[:limit])
    model = Model.from_arguments(config.model_arguments())
    arms = []
    for layout in config.layouts:
        for condition in config.conditions:
            check = None
            if model is not None:
                budget = config.sampling.max_gen_toks
                check = check_documents(
                    dataset, condition, (layout,), model, max_gen_toks=budget, instruction=config.instruction
                )[0]
            task = config.task_name(dataset.name, condition.name, layout)
            arms.append(Arm(task=task, condition=condition, layout=layout, check=check))
    return Plan(config=config, dataset=dataset, model=model, arms=tuple(arms))


def execute(plan: Plan, *, output: Path | None = None) -> Path:
    """Run the plan and return the run folder.

    Raises:
        HarnessError: the folder already holds a run, or the model cannot be loaded.
    """
    folder = _new_folder(plan.config, output)
    started = time.monotonic()
    _quieten()
    generation = _generation_arguments(plan)
    checks = [arm.check for arm in plan.arms]
    checked = None if None in checks else frozenset(h for check in checks if check for h in check.prompt_sha256)
    lm = load_model(plan.config.model.backend, plan.config.model_arguments(), checked_prompts=checked)
    tasks = []
    for templated in (False, True):
        arms = [arm for arm in plan.arms if (arm.layout is Layout.CHAT) == templated]
        if arms:
            tasks += _evaluate(plan, arms, lm, generation, folder, templated=templated)
    receipt = _receipt(plan, tasks, generation, time.monotonic() - started)
    (folder / RECEIPT).write_text(json.dumps(receipt, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    draw_run(folder)
    return folder


def draw_run(folder: Path) -> list[Path]:
    """Draw the bar chart of a finished run into its folder."""
    frame = load_run(folder)
    receipt = json.loads((folder / RECEIPT).read_text(encoding="utf-8"))
    table = accuracy_table(frame)
    figure = draw_accuracy_bars(
        table, title=f"Results on {receipt['dataset']['name']} ({receipt['dataset']['problems']} problems)"
    )
    kept = {k: receipt[k] for k in ("run", "model", "dataset", "versions", "git_revision", "seed", "created")}
    return save_figure(figure, folder / FIGURE, kept)


def _evaluate(
    plan: Plan, arms: Sequence[Arm], lm: LM, generation: Mapping[str, Any], folder: Path, *, templated: bool
) -> list[dict[str, Any]]:
    """All arms in one call, hence one pool of requests; lm-eval's files are written as its own CLI writes them."""
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.utils import sanitize_model_name

    tracker = EvaluationTracker(output_path=str(folder / "results.json"))
    results = simple_evaluate(
        model=lm,
        tasks=[_task(plan, arm, generation) for arm in arms],
        batch_size="auto",
        apply_chat_template=templated,
        log_samples=True,
        evaluation_tracker=tracker,
        random_seed=plan.config.seed,
        numpy_random_seed=plan.config.seed,
        torch_random_seed=plan.config.seed,
        fewshot_random_seed=plan.config.seed,
    )
    samples = results.pop("samples")
    results["config"] |= {
        "model": plan.config.model.backend,
        "model_args": {k: str(v) for k, v in plan.config.model.arguments.items()},
    }
    tracker.general_config_tracker.model_source = plan.config.model.backend
    tracker.general_config_tracker.model_name = plan.config.model.display_name
    tracker.general_config_tracker.model_name_sanitized = sanitize_model_name(plan.config.model.display_name)
    written = []
    for arm in arms:
        for sample in samples[arm.task]:
            sample["generations"] = [_generation(completion) for completion in sample["resps"][0]]
    tracker.save_results_aggregated(results=results, samples=samples)
    for arm in arms:
        rows = samples[arm.task]
        token_hashes = [g.get("prompt_token_sha256") for row in rows for g in row["generations"]]
        tracker.save_results_samples(task_name=arm.task, samples=rows)
        written.append(
            {
                "task": arm.task,
                "condition": arm.condition.name,
                "layout": str(arm.layout),
                "samples": f"samples_{arm.task}_{tracker.date_id}.jsonl",
                "results": f"results_{tracker.date_id}.json",
                "prompts_sha256": _hash_all([row["prompt_hash"] for row in rows]),
                "prompt_tokens_sha256": None if None in token_hashes else _hash_all(token_hashes),
                "filler_tokens": list(arm.check.filler_tokens) if arm.check else None,
            }
        )
    return written


def _task(plan: Plan, arm: Arm, generation: Mapping[str, Any]) -> Any:
    """The shipped task template with this arm's documents."""
    from datasets import Dataset as Table
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    documents = build_documents(
        plan.dataset, arm.condition, arm.layout, model=plan.model, instruction=plan.config.instruction
    )
    table = Table.from_list(documents)

    def custom_dataset(**_metadata: Any) -> dict[str, Any]:
        return {"test": table}

    template = load_yaml(resources.folder("tasks") / "math500" / "_math500.yaml")
    return ConfigurableTask(
        config={
            **template,
            "task": arm.task,
            "generation_kwargs": dict(generation),
            "custom_dataset": custom_dataset,
        }
    )


def _generation(completion: str) -> dict[str, Any]:
    """What the engine recorded of a completion; empty for backends that record nothing."""
    if not isinstance(completion, Completion):
        return {}
    return {
        "finish_reason": completion.finish_reason,
        "prompt_tokens": len(completion.prompt_token_ids),
        "prompt_token_sha256": hash_token_ids(completion.prompt_token_ids),
        "completion_tokens": completion.completion_tokens,
    }


def _generation_arguments(plan: Plan) -> dict[str, Any]:
    """lm-eval's generation arguments for the config's sampling."""
    sampling = plan.config.sampling
    fixed: dict[str, Any] = {"until": list(sampling.until), "max_gen_toks": sampling.max_gen_toks}
    if sampling.mode == "greedy":
        return {**fixed, **_GREEDY}
    if sampling.mode == "explicit":
        given = {k: getattr(sampling, k) for k in ("temperature", "top_p", "top_k", "repetition_penalty")}
        return fixed | {"do_sample": bool(sampling.temperature)} | {k: v for k, v in given.items() if v is not None}
    return fixed | _model_default(plan.config)


_GREEDY: Mapping[str, Any] = {"do_sample": False, "temperature": 0.0}
_GENERATE_TOP_K = 50
"""What transformers' `generate` takes where a sampling model names no top_k."""


def _model_default(config: RunConfig) -> dict[str, Any]:
    """What plain `generate` would do with this model: its generation_config, gaps filled as transformers fills them."""
    from transformers import GenerationConfig

    name = str(config.model_arguments().get("pretrained") or "")
    try:
        own = GenerationConfig.from_pretrained(name, revision=config.model.arguments.get("revision"))
    except (OSError, ValueError) as error:
        raise ModelError(
            "sampling.mode is model_default, and the model's generation_config.json cannot be read. "
            f"{explain_hub_error(name, error)} Or use mode greedy, or explicit with a temperature."
        ) from error
    penalty = {} if own.repetition_penalty in (None, 1.0) else {"repetition_penalty": own.repetition_penalty}
    if not own.do_sample:
        return {**_GREEDY, **penalty}
    temperature = 1.0 if own.temperature is None else own.temperature
    top_k = _GENERATE_TOP_K if own.top_k is None else own.top_k
    top_p = {} if own.top_p is None else {"top_p": own.top_p}
    return {"do_sample": True, "temperature": temperature, "top_k": top_k, **top_p, **penalty}


def _receipt(plan: Plan, tasks: list[dict[str, Any]], generation: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    config = plan.config
    return {
        "run": config.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "model": {
            "label": config.model.display_name,
            "backend": config.model.backend,
            **receipts.model_fingerprint(
                str(config.model_arguments().get("pretrained") or config.model.name),
                config.model.arguments.get("revision"),
            ),
        },
        "dataset": {
            "name": plan.dataset.name,
            "source": plan.dataset.source,
            "problems": len(plan.dataset.problems),
            "sha256": plan.dataset.sha256,
        },
        "generation": dict(generation),
        "grader_version": GRADER_VERSION,
        "seed": config.seed,
        "tasks": tasks,
        "versions": receipts.versions(),
        "git_revision": receipts.git_revision(),
        "config": config.as_written(),
    }


def _new_folder(config: RunConfig, output: Path | None) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = output or config.output / f"{config.name}-{stamp}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RunError(f"{folder} already holds files. Choose another --output; nothing there was touched.")
    except OSError as error:
        raise RunError(f"{folder} cannot be made: {error.strerror}. Choose another --output.") from None
    return folder


def _quieten() -> None:
    """Progress bars stay, chatter goes; whoever set a level keeps it."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("LMEVAL_LOG_LEVEL", "WARNING")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("lm_eval").setLevel(logging.WARNING)


def _hash_all(hashes: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()
