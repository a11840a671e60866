"""Traces of a run's prompts that its engine records while it generates: `record_attention: 1-3`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from attention_probe.measure.measure_in_engine import average_sums, query_sets
from attention_probe.probe_settings import ProbeSettings
from attention_probe.prompts.token_roles import align_prompts, common_tokens
from attention_probe.run_probe import make_header, make_receipt, make_trace
from attention_probe.traces import AttentionTraces
from harness import smollm2_model
from harness.engines.attention_sums import Floats
from harness.experiment.built_prompts import BuiltPrompt
from harness.experiment.plan import Plan, Request
from harness.experiment.tokenizer import ModelTokenizer
from harness.runs.prompt_sources import Problem, filled_answers
from harness.runs.records import prompt_id


class RunRecorder:
    """Marks the requests whose attention is recorded, and adds the sums to a folder of traces.

    The first sample of each prompt of the first layout is recorded. Not recorded are reference
    conditions, whose tokens are not the baseline's, and fillers in the answer.

    Args:
        plan: The run's plan.
        path: The folder; created, or continued if it exists.
        dtype: Type that the engine computes in.

    Raises:
        JournalError: the folder holds traces of another kind, or cannot be written.
    """

    def __init__(self, plan: Plan, path: Path, dtype: Any) -> None:
        self._plan = plan
        model = ModelTokenizer.from_arguments(plan.model_arguments)
        assert plan.config.record_attention and model  # because the plan has checked both
        built_prompts: dict[str, dict[str, BuiltPrompt]] = {}
        self._recorded: dict[tuple[str, str], tuple[Problem, str]] = {}
        """Problem and condition of a trace, by the task and the problem of its requests."""
        in_answer = filled_answers(plan.config.conditions)
        names = [condition.name for condition in plan.config.conditions]
        conditions = tuple(name for name in names if name not in in_answer)
        for task, arm, problem, prompt in plan.rows:
            condition = arm.condition.name
            # one layout, because the header of a folder of traces names one
            if condition in conditions and arm.layout == plan.config.layouts[0]:
                traced_problem = Problem(
                    id=prompt_id(problem.id, arm.draw),
                    subject=problem.subject,
                    level=problem.level,
                    cluster=problem.counts_with,
                    prompts={},
                )
                self._recorded[task, problem.id] = traced_problem, condition
                built_prompts.setdefault(traced_problem.id, {})[condition] = prompt
        self._prompts = {
            problem_id: align_prompts(problem_id, by_condition, model.tokenizer)
            for problem_id, by_condition in built_prompts.items()
        }
        self._traces = self._open_traces(path, model, dtype, conditions)

    def _open_traces(
        self, path: Path, model: ModelTokenizer, dtype: Any, conditions: tuple[str, ...]
    ) -> AttentionTraces:
        """The folder of traces, with the header that `mless probe` would write."""
        plan, config = self._plan, self._plan.config
        settings = ProbeSettings(
            model=smollm2_model.name_model(str(plan.model_arguments["pretrained"])),
            conditions=conditions,
            dtype=dtype,
            arguments=config.model.model_args,
            engine={},
        )
        layers: Any = config.recorded_layers
        if layers == "all":
            layers = range(settings.load_config().num_hidden_layers)
        settings = replace(settings, layers=tuple(layers))
        receipt = make_receipt(
            settings,
            model.tokenizer,
            source={
                "name": config.name,
                "kind": "run",
                "prompts_sha256": plan.prompts_sha256,
            },
            selection={"problems": len(self._prompts)},
        )
        header = make_header(settings, layout=str(config.layouts[0]))
        return AttentionTraces.create(path, header, receipt=receipt)

    def add_query_sets(self, request: Request) -> Request:
        """The request, with the queries to sum over if its prompt is to be recorded."""
        key = request.task, request.problem_id
        # Further samples have the same prompt and so the same attention. Indices count over the
        # draws of examples first, so each draw has a first sample.
        is_first_sample = not request.replicate and request.sample_index < self._plan.config.draws
        if key not in self._recorded or not is_first_sample:
            return request
        problem, condition = self._recorded[key]
        if self._traces.has(problem.id, condition):
            return request
        prompts = self._prompts[problem.id]
        common = common_tokens(prompts)[condition]
        return replace(request, record=query_sets(prompts[condition], common))

    def store_sums(self, request: Request, sums: Floats) -> None:
        """Add the trace of the sums [layer, set, head, key] that the engine recorded.

        Raises:
            JournalError: the folder cannot be written.
        """
        problem, condition = self._recorded[request.task, request.problem_id]
        prompt = self._prompts[problem.id][condition]
        measured_fields = average_sums(prompt, request.record, sums)
        self._traces.append(make_trace(problem, prompt, measured_fields))

    def close(self) -> None:
        """Release the folder."""
        self._traces.close()
