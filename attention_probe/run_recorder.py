"""Traces of a run's prompts, recorded by its engine while it answers: `record_attention: 1-3` in the config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig

from attention_probe.measure.head_decomposition import key_regions, mass_measures
from attention_probe.prompts.token_roles import TokenizedPrompt, align_prompts, common_tokens
from attention_probe.run_probe import ProbeSettings, make_header, make_receipt, make_trace
from attention_probe.traces import AttentionTraces
from harness import smollm2_model
from harness.analysis.choose_problems import Criterion
from harness.engines.attention_sums import Floats, means
from harness.experiment.plan import Plan, Request
from harness.experiment.run_config import RunConfig
from harness.experiment.token_checks import BuiltPrompt
from harness.experiment.tokenizer import ModelTokenizer
from harness.runs.answered_prompts import Problem, filled_answers
from harness.runs.records import as_json, prompt_id
from harness.runs.versions_and_hashes import model_fingerprint


class RunRecorder:
    """Says of which requests attention is recorded, and adds what comes back to a folder of traces.

    Recorded is the first sample of each prompt of the first layout, but not of reference conditions, whose tokens are
    not the baseline's, and not of fillers in the answer.

    Args:
        plan: The run's.
        path: The folder; made, or continued.
        dtype: What the engine computes in.

    Raises:
        JournalError: the folder holds other traces, or cannot be written.
    """

    def __init__(self, plan: Plan, path: Path, dtype: Any) -> None:
        config, arguments = plan.config, plan.model_arguments
        model = ModelTokenizer.from_arguments(arguments)
        assert config.record_attention and model  # as the plan found
        self._plan = plan
        names = recorded_conditions(config)
        built: dict[str, dict[str, BuiltPrompt]] = {}
        self._problems: dict[str, Problem] = {}
        for _, arm, problem, prompt in plan.rows:
            if arm.condition.name in names and arm.layout == config.layouts[0]:
                name = prompt_id(problem.id, arm.draw)
                built.setdefault(name, {})[arm.condition.name] = prompt
                self._problems[name] = Problem(
                    id=name,
                    subject=problem.subject,
                    level=problem.level,
                    cluster=problem.counts_with,
                    prompts={},
                )
        self._prompts = {
            name: align_prompts(name, prompts, model.tokenizer) for name, prompts in built.items()
        }
        name, revision, layers = (
            str(arguments["pretrained"]),
            arguments.get("revision"),
            config.recorded_layers,
        )
        shape = AutoConfig.from_pretrained(name, revision=revision).get_text_config()
        numbers = tuple(range(shape.num_hidden_layers) if layers == "all" else layers)
        settings = ProbeSettings(
            model=smollm2_model.name_model(name), layers=numbers, conditions=names, dtype=dtype
        )
        fingerprint = as_json(model_fingerprint(name, revision))
        header = make_header(shape, fingerprint, settings, layout=str(config.layouts[0]))
        receipt = make_receipt(
            settings,
            model.tokenizer,
            source={
                "name": config.name,
                "kind": "run",
                "prompts_sha256": plan.prompts_sha256,
                "metric": None,
            },
            selection={
                "criterion": Criterion().model_dump(mode="json"),
                "outcomes": {},
                "problems": len(built),
            },
            checks={"notices": ["recorded in the run's engine"]},
        )
        self._traces = AttentionTraces.create(path, header, receipt=receipt)

    def ask(self, request: Request) -> Request:
        """The request, with the queries whose attention is summed if its prompt is recorded and not there yet."""
        problem, condition = self._place(request)
        first = (
            not request.replicate and request.sample_index % self._plan.config.repeats_per_draw == 0
        )
        if (
            not first
            or condition not in self._prompts.get(problem, ())
            or self._traces.has(problem, condition)
        ):
            return request
        prompts = self._prompts[problem]
        return replace(
            request, record=query_sets(prompts[condition], common_tokens(prompts)[condition])
        )

    def keep(self, request: Request, sums: Floats) -> None:
        """Add what was recorded: [layer, set, head, key].

        Raises:
            JournalError: the folder cannot be written.
        """
        problem, condition = self._place(request)
        prompt = self._prompts[problem][condition]
        self._traces.append(
            make_trace(
                self._problems[problem], prompt, measured_fields(prompt, request.record, sums)
            )
        )

    def close(self) -> None:
        """Let others add to the folder."""
        self._traces.close()

    def _place(self, request: Request) -> tuple[str, str]:
        """Problem and condition; of another layout than the first, no problem."""
        arm = self._plan.arms[request.task]
        first = arm.layout == self._plan.config.layouts[0]
        return prompt_id(request.problem_id, arm.draw) if first else "", arm.condition.name


def recorded_conditions(config: RunConfig) -> tuple[str, ...]:
    """The conditions whose prompts can be aligned to the baseline's, and whose fillers are not in the answer."""
    hidden = filled_answers(config.conditions)
    return tuple(condition.name for condition in config.conditions if condition.name not in hidden)


def query_sets(prompt: TokenizedPrompt, common: NDArray[np.bool_]) -> list[list[int]]:
    """The queries over which attention is summed: all, the common ones, and those of the problem among them."""
    everything = np.ones(len(prompt), np.bool_)
    sets = [everything, common, common & prompt.has_role("problem")]
    return [one.astype(int).tolist() for one in sets]


def measured_fields(prompt: TokenizedPrompt, sets: Any, sums: Floats) -> dict[str, Any]:
    """What a `Trace` has of the sums [layer, set, head, key] over these sets of queries."""
    curves, inside = means(sums, sets), key_regions(prompt)
    masses = torch.from_numpy(sums[:, -1].copy()) @ inside.float().T / max(1, sum(sets[-1]))
    layers = [mass_measures(layer[:, None]) for layer in masses]
    measures = {key: torch.stack([layer[key] for layer in layers]).numpy() for key in layers[0]}
    return {"mean_all": curves[:, 0], "mean_common": curves[:, 1], "measures": measures}
