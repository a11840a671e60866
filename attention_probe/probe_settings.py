"""The settings of a probe: what to record, of which model and under which conditions.

A *source* is the problems with their prompts: those of a run or of logs, or built from a dataset.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from attention_probe.measure.prompt_fields import MeasurementOptions
from attention_probe.model.first_layers import LoadedModel, load_model
from attention_probe.prompts.token_roles import GAP_SUFFIX, TokenizedPrompt, remove_gap
from harness import smollm2_model
from harness.constants import BASELINE, STUDY_CONDITION, Dtype, JsonObject
from harness.engines.interventions.open_layers import find_changed_layers
from harness.engines.interventions.user_functions import refuse_change
from harness.errors import ConfigError, PromptMismatchError, list_near, print_message
from harness.experiment.intervention_settings import Intervention
from harness.experiment.model_settings import select_loader_arguments
from harness.experiment.prompts.tokenizer import ModelTokenizer, load_model_config
from harness.runs.prompt_sources import Source

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

_MODEL_FILE = re.compile(r"revision|config\.json|.*\.(?:safetensors|bin)")
"""The names in a fingerprint that change attention: weights, config, and the commit on the hub. The
tokenizer's files are left out, because prompts are compared token by token."""
MOST_ROW_BYTES = 1 << 31
"""Most bytes of rows that are stored of all prompts."""


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """What to record, and of which model.

    Attributes:
        model: Folder, hub name or `smollm2`; None for the model that was run.
        layers: Decoder layers, as indices from 0.
        conditions: Names of conditions; `mless+gap` is the position gap of `mless`. Empty for all
            conditions of the source and the gap of `mless`. The baseline is always recorded.
        record: Which measurements to make.
        dtype: Type that the layers are computed in. If it is not float32, one prompt is compared
            with float32.
        device: `cpu`, `cuda`, ...; by default `cuda` if there is such a GPU.
        engine: Arguments of vLLM, which then replaces Hugging Face; None for Hugging Face. To those
            named here `complete_from` adds the run's, unless another model is named.
        arguments: Arguments of the model's loaders, such as `revision`; those of the run, unless
            another model is named.
        opened: Layers that interventions change; see `find_changed_layers`.
    """

    model: str | None = None
    layers: tuple[int, ...] = (0,)
    conditions: tuple[str, ...] = ()
    record: MeasurementOptions = field(default_factory=MeasurementOptions)
    dtype: Dtype = "float32"
    device: str | None = None
    engine: JsonObject | None = None
    arguments: JsonObject = field(default_factory=dict)
    opened: JsonObject = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what only Hugging Face can do.

        Raises:
            ConfigError: an engine is to record position gaps, activations or norms, or on another
                device.
        """
        unsupported_options = [name for name in self.conditions if name.endswith(GAP_SUFFIX)]
        unsupported_options += [
            f"--{name}" for name in ("activations", "norms") if getattr(self.record, name)
        ]
        if self.device:
            unsupported_options.append(f"--device {self.device}")
        if self.engine is not None and unsupported_options:
            raise ConfigError(
                f"Hugging Face alone supports {', '.join(unsupported_options)}: remove --engine."
            )

    def complete_from(self, source: Source) -> ProbeSettings:
        """The settings, with model and conditions taken from the source where none are named.

        Raises:
            ConfigError: the source lacks a condition or the baseline, a condition cannot be
                probed, or the run's model has an argument that the probe does not use.
        """
        chosen_conditions = self.conditions or self._default_conditions(source)
        # the baseline first, because all other prompts are aligned to it
        conditions = tuple(dict.fromkeys((BASELINE, *chosen_conditions)))
        probed_conditions = find_probed_conditions(source, conditions)
        interventions = {
            name: source.interventions[name]
            for name in probed_conditions
            if name in source.interventions
        }
        refuse_changed_functions(source, interventions)
        device = self.device
        if self.engine is None:
            if interventions:
                raise ConfigError(
                    f"{source.name} changes the model under {', '.join(interventions)}, which only "
                    "the engine does: add --engine."
                )
            device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        completed_settings = replace(
            self, conditions=conditions, device=device, opened=find_changed_layers(interventions)
        )
        # the run's arguments say nothing about another model
        if _locate(self.model or source.model) != _locate(source.model):
            return completed_settings
        return completed_settings._add_arguments(source)

    def _add_arguments(self, source: Source) -> ProbeSettings:
        """The settings with the source's model and the arguments that it was run with."""
        arguments = source.model_arguments
        # Hugging Face loads nothing with arguments of vLLM, and vLLM nothing with those of others
        if self.engine is None or not source.is_vllm:
            arguments = select_loader_arguments(arguments)
        return replace(
            self,
            model=self.model or source.model,
            arguments=arguments,
            # None stands for Hugging Face; an argument that was named here replaces the run's
            engine=None if self.engine is None else arguments | self.engine,
        )

    def _default_conditions(self, source: Source) -> list[str]:
        """The conditions that can be measured; with Hugging Face also the gap of `mless`."""
        if self.engine is not None:
            return list(source.conditions)
        # Hugging Face makes no interventions
        conditions = [name for name in source.conditions if name not in source.interventions]
        if STUDY_CONDITION in conditions:
            conditions.append(f"{STUDY_CONDITION}{GAP_SUFFIX}")
        return conditions

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""
        if self.model is None:
            raise ConfigError("The source does not record its model. Name the model with --model.")
        model_tokenizer = ModelTokenizer.from_arguments(
            {**self.arguments, "pretrained": self.model}
        )
        assert model_tokenizer is not None  # it is None only if no model is named
        return model_tokenizer.tokenizer

    def load_config(self) -> PretrainedConfig:
        """The model's config, or that of its text layers."""
        return load_model_config(str(self.model), self.arguments)

    def load_model(self, dtype: Dtype) -> LoadedModel:
        """The first layers, up to the deepest of `layers`, to compute in this type."""
        return load_model(
            str(self.model),
            layer_indices=self.layers,
            dtype=getattr(torch, dtype),
            device=str(self.device),
            model_arguments=self.arguments,
        )


def _locate(model: str | None) -> Path:
    """A path that is the same for all names of a model's folder, and for a name on the hub."""
    return Path(smollm2_model.name_model(str(model))).expanduser().resolve()


def find_probed_conditions(source: Source, names: Iterable[str]) -> Collection[str]:
    """The condition of each name: the name itself, or for a position gap the condition it is of.

    Raises:
        ConfigError: the source lacks a condition, or one cannot be probed.
    """
    condition_by_name = {name: remove_gap(name, source.conditions) for name in names}
    absent_text = ", ".join(
        name for name, condition in condition_by_name.items() if condition not in source.conditions
    )
    if absent_text:
        raise ConfigError(
            f"{source.name} has no condition {absent_text}: expected one of "
            f"{list_near(absent_text, source.conditions)}."
        )
    answer_filled_names = [
        name
        for name, condition in condition_by_name.items()
        if condition in source.answer_filled_conditions
    ]
    if answer_filled_names:
        raise ConfigError(
            f"{source.name} does not record where in the answer the filler of "
            f"{', '.join(answer_filled_names)} stands: leave it out of --conditions."
        )
    prompts = chain.from_iterable(problem.prompts.values() for problem in source.problems)
    if not all(prompt.requested_prompt.segments for prompt in prompts):
        raise ConfigError(
            f"{source.name} does not record where fillers stand: expected a run, or logs that "
            "`mless tasks --wrap` made."
        )
    return condition_by_name.values()


def refuse_changed_functions(
    source: Source, interventions: Mapping[str, Sequence[Intervention]]
) -> None:
    """Raise ConfigError if a user's function has changed since the run that called it."""
    for condition, condition_interventions in interventions.items():
        # a function is the same for all prompts, so the first one is enough
        stored_interventions = source.problems[0].prompts[condition].intervention or ()
        for intervention in condition_interventions:
            if intervention.kind != "function":
                continue
            refuse_change(str(intervention.file), intervention.arguments)
            if intervention.resolve() not in stored_interventions:
                raise ConfigError(
                    f"{condition}: {intervention.file} has other content than when it was run."
                )


def refuse_changed_model(source: Source, model: str | None, fingerprint: JsonObject) -> None:
    """Raise ConfigError if the run's model has other weights than when it was run.

    Args:
        source: The prompts of the run.
        model: The model to load; another than the run's may have any weights.
        fingerprint: Its fingerprint.
    """
    if _locate(model) != _locate(source.model):
        return
    # digests by file; the commit on the hub is the digest of `revision`
    stored_digests, loaded_digests = (
        {"revision": facts.get("revision"), **(facts.get("sha256") or {})}
        for facts in (source.fingerprint, fingerprint)
    )
    # what has another digest now, or none; a run of a folder has no commit
    changed_items = stored_digests.items() - loaded_digests.items()
    files = [name for name, digest in changed_items if digest and _MODEL_FILE.fullmatch(name)]
    if files:
        raise ConfigError(
            f"{source.name}: {', '.join(sorted(files))} of {model} has other content than when "
            "it was run: restore it, or name another model with --model."
        )


def check_prompt_and_row_sizes(settings: ProbeSettings, prompts: Sequence[TokenizedPrompt]) -> None:
    """Refuse prompts that are too long, and rows that are too large, and print the rows' size.

    Raises:
        PromptMismatchError: a prompt is longer than the model's context.
        ConfigError: the rows are larger than MOST_ROW_BYTES.
    """
    config = settings.load_config()
    context_tokens = getattr(config, "max_position_embeddings", None)
    # an engine generates a token after each prompt, which needs a position too
    reserved_tokens = int(settings.engine is not None)
    for prompt in prompts:
        if context_tokens is not None and len(prompt) + reserved_tokens > context_tokens:
            raise PromptMismatchError(
                f"Problem {prompt.problem_id}, condition {prompt.condition!r}: {len(prompt)} "
                f"tokens; {settings.model} has a context of {context_tokens}."
            )
    options = settings.record
    if options.rows is None:
        return
    head_count = len(set(settings.layers)) * int(config.num_attention_heads)
    # each stored row of a head has a weight for every token of its prompt
    weights_per_head = sum(options.count_rows(prompt) * len(prompt) for prompt in prompts)
    # a weight has 4 bytes in float32
    row_bytes = 4 * head_count * weights_per_head
    if row_bytes > MOST_ROW_BYTES:
        raise ConfigError(
            f"--rows {options.rows} takes {row_bytes / 1e9:.1f} GB for {len(prompts)} prompts, and "
            f"{MOST_ROW_BYTES / 1e9:.1f} GB are the most: expected fewer rows, problems, "
            "conditions or layers."
        )
    print_message(f"rows of {row_bytes / 1e6:.1f} MB")
