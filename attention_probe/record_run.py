"""Traces of a run's prompts, recorded by its engine while it answers: `record: {attention: 1-3}` in the config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from attention_probe.measure.record_in_engine import EngineModel, measured_fields, query_sets
from attention_probe.probe import ProbeSettings, make_header, make_receipt, make_trace
from attention_probe.prompts.token_roles import common_tokens, tokenize
from attention_probe.traces import AttentionTraces
from harness.analysis.choose_problems import Criterion, select
from harness.engines.attention import Floats
from harness.experiment.conditions import yardstick
from harness.experiment.plan import Plan, Request
from harness.experiment.tokenizer import ModelTokenizer
from harness.runs.prompts_of_run import Source, answered_prompts, by_problem, filled_answers, prompt_id


class RunRecorder:
    """Says of which requests attention is recorded, and adds what comes back to a folder of traces.

    Recorded is the first sample of each prompt of the first layout, but of those yardsticks whose tokens are not the
    baseline's (rewordings, the positive control), and of fillers in the answer.

    Args:
        plan: The run's.
        path: The folder; made, or continued.
        dtype: What the engine computes in.

    Raises:
        JournalError: the folder holds other traces, or cannot be written.
    """

    def __init__(self, plan: Plan, path: Path, dtype: Any) -> None:
        config, arguments = plan.config, plan.config.model_arguments()
        model = ModelTokenizer.from_arguments(arguments)
        assert config.record and model  # as the plan found
        self._plan, layout = plan, config.layouts[0]
        hidden = filled_answers(config.all_conditions)
        aligned = [one.name for one in config.all_conditions if yardstick(one.name) in (None, "other filler")]
        names = tuple(name for name in aligned if name not in hidden)
        asked = [row for row in plan.prompts if row["condition"] in names and row["layout"] == str(layout)]
        rows = [{**row, "where": config.name} for row in asked]
        source = Source(
            name=config.name,
            kind="run",
            model=str(arguments["pretrained"]),
            layout=str(layout),
            conditions=names,
            problems=by_problem(answered_prompts(rows, [()] * len(rows))),
        )
        chosen = select(source, Criterion())
        self._clusters = {one.id: one.cluster for one in source.problems}
        self._chosen = {one.problem_id: one for one in chosen.problems}
        self._prompts = {one.id: tokenize(one, model.tokenizer, conditions=names) for one in source.problems}
        self._common = {name: common_tokens(prompts) for name, prompts in self._prompts.items()}
        loaded = EngineModel.of(str(source.model), config.record.numbers, arguments.get("revision"))
        settings = ProbeSettings(model=source.model, layers=loaded.layers, conditions=names, dtype=dtype, engine=True)
        receipt = make_receipt(source, chosen, settings, model.tokenizer, {"notices": ["recorded in the run's engine"]})
        self._traces = AttentionTraces.create(path, make_header(loaded, source, chosen, settings), receipt=receipt)

    def ask(self, request: Request) -> Request:
        """The request, with the queries whose attention is summed if its prompt is recorded and not there yet."""
        problem, condition = self._place(request)
        first = not request.replicate and request.sample_index % self._plan.config.samples_each == 0
        if not first or condition not in self._prompts.get(problem, ()) or self._traces.has(problem, condition):
            return request
        return replace(request, record=query_sets(self._prompts[problem][condition], self._common[problem][condition]))

    def keep(self, request: Request, sums: Floats) -> None:
        """Add what was recorded: [layer, set, head, key].

        Raises:
            JournalError: the folder cannot be written.
        """
        problem, condition = self._place(request)
        prompt = self._prompts[problem][condition]
        found = measured_fields(prompt, request.record, sums) | {"cluster": self._clusters[problem]}
        self._traces.append(make_trace(self._chosen[problem], prompt, found))

    def close(self) -> None:
        """Let others add to the folder."""
        self._traces.close()

    def _place(self, request: Request) -> tuple[str, str]:
        """Problem and condition; of another layout than the first, no problem."""
        arm = self._plan.arms[request.task]
        first = arm.layout == self._plan.config.layouts[0]
        return prompt_id(request.problem_id, arm.draw) if first else "", arm.condition.name
