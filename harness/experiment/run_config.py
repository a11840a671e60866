"""The config of a run: one YAML file is one experiment. Its schema, its defaults, its refusals."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, model_validator

from harness import resources, smollm2_model
from harness.constants import (
    ANSWER_LOGPROB,
    BASELINE,
    DEFAULT_SEED,
    MAX_GEN_TOKS,
    STUDY_CONDITION,
    JsonObject,
)
from harness.errors import ConfigError
from harness.experiment.condition_entries import (
    add_reference_conditions,
    expand_sweep,
    index_entries,
)
from harness.experiment.conditions import (
    Condition,
    as_condition,
    contrast_name,
    find_baseline,
    index_interventions,
    read_contrast,
)
from harness.experiment.fewshot_examples import AnyFewshot, ExamplesConfig
from harness.experiment.generation_settings import ExplicitSampling, Sampling, read_model_default
from harness.experiment.intervention_settings import Intervention
from harness.experiment.model_settings import ModelConfig, select_fixed_arguments
from harness.experiment.problems import AnyDataset
from harness.experiment.prompts.prompt import PLAIN_INSTRUCTION, Layout
from harness.experiment.prompts.template_parser import Template, parse_template
from harness.reasoning_markers import Markers
from harness.yaml_settings import Strict, UserPath, read_values, validate


class ThinkingConfig(Strict):
    """The texts around a model's reasoning."""

    start: str = Field(pattern=r"\S")
    """The text with which it begins, such as `<think>`."""
    end: str = Field(pattern=r"\S")
    """The text with which it ends, such as `</think>`."""


Family = Literal["sentences", "random_tokens"]
"""The families of other texts."""
OtherTexts = Annotated[
    dict[Family, Annotated[StrictInt, Field(ge=1, le=999)]],
    Field(min_length=1),
    BeforeValidator(lambda value: value if isinstance(value, Mapping) else {"sentences": value}),
]
"""The number of other texts by family. A number alone is that of sentences."""
ContrastName = Annotated[str, AfterValidator(lambda text: contrast_name(*read_contrast(text)))]
"""A contrast such as `mless - wo`, with one blank on either side of the sign."""


_KEYS_THAT_MAY_CHANGE = "output audit name dataset primary contrasts".split()
"""Keys whose values may differ when a run is continued, so `RunConfig.identity` leaves them out."""
_RECORDED_KEYS = "replicates layouts instruction gen_kwargs repeats max_gen_toks until seed".split()
"""Keys that are in `RunConfig.identity` even with their default values, unlike other keys."""


class RunConfig(Strict):
    """One experiment.

    Example:
        >>> model = {"model_args": {"pretrained": "smollm2"}}
        >>> config = mless.RunConfig(name="mine", model=model, conditions=["wo", "mless"])
        >>> config.tested
        (('mless', 'wo'),)
    """

    inner_keys: ClassVar = [
        "gen_kwargs.temperature",
        "gen_kwargs.top_p",
        "fewshot.num_fewshot",
        "fewshot.examples",
    ]
    """Keys of inner mappings that the message about an unknown key suggests, because a user may
    have written only their last part, such as `temperature`."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")
    """The run's name, also that of its folder."""
    model: ModelConfig
    """The model, and the backend that runs it."""
    dataset: AnyDataset = "math500"
    """MATH-500, a data file, or arithmetic problems."""
    conditions: tuple[Annotated[Any, BeforeValidator(as_condition)], ...] = Field(min_length=1)
    """`wo`, `mless`, `mful`, `random`, or mappings."""
    # None in every config: `_fill_in_defaults` turns a sweep into conditions. The field makes the
    # key known to the schema and to docs/config.md.
    sweep: None = None
    """A condition for each combination: {unit: ["/", "."], count: [10, 25]}."""
    baseline: str | None = None
    """The condition to compare with. By default `wo`, else the first."""
    contrasts: tuple[ContrastName, ...] | None = None
    """The tested contrasts. By default every condition minus the baseline; with `--model` only
    `mless - wo` and `mless - random`, and all others are exploratory."""
    primary: ContrastName | None = None
    """The primary contrast. By default `mless` minus the baseline."""
    replicates: int = Field(default=1, ge=1, le=2)
    """2 adds a repeat run (A/A) of the primary contrast, else of the first."""
    other_texts: OtherTexts | None = None
    """The number of other texts in place of the primary contrast's filler. A number is that of
    `sentences`; the other family is `random_tokens`: {sentences: 20, random_tokens: 20}."""
    positive_control: bool = False
    """Adds a condition that must lower accuracy: an immediate answer, or with `answer: line` no
    examples."""
    layouts: tuple[Layout, ...] = ()
    """The forms of prompts: `as_published` is that of the authors' code. By default `chat` if there
    is a chat template, else `raw`."""
    instruction: str | None = None
    """The system prompt. By default the study's; with `answer: line` `Answer the question.`"""
    template: Template | None = None
    r"""The form of examples and question, with `{problem}`, `{filler}`, `{choices}`, `{answer}`,
    and `{row.COLUMN}` for a column of the data. By default `Q: {problem}\nA: {answer}` in `raw`
    with `fewshot` or with `answer: line`, else the problem alone; choices follow the problem."""
    question: Template | None = None
    """The form of the question, if it differs from the examples'."""
    fewshot: AnyFewshot | None = None
    """Examples before the question."""
    answer: Literal["box", "line"] = "box"
    """The answer: the last `box`, or the first `line`, which ends the completion."""
    endpoint: Literal["accuracy", "answer_logprob"] = "accuracy"
    """What is measured: accuracy, or with `answer_logprob` whether the gold answer is likelier than
    four others. Then nothing is generated."""
    thinking: ThinkingConfig | None = None
    """The texts around the model's reasoning, which is never read. By default those of its chat
    template, else of all known families."""
    gen_kwargs: Literal["greedy", "model_default"] | ExplicitSampling = "greedy"
    """How completions are sampled; `model_default` is the model's generation_config."""
    repeats: int = Field(default=1, ge=1)
    """The number of samples of each problem. Below the number of draws of examples, it is each
    problem's number of draws."""
    max_gen_toks: int = Field(default=MAX_GEN_TOKS, ge=1)
    """The maximum length of a completion, in tokens."""
    until: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Strings that end a completion, such as `Question:`."""
    audit: bool = True
    """Other graders also grade each completion."""
    output: UserPath = Path("results")
    """The folder that contains the run folders."""
    seed: int = Field(default=DEFAULT_SEED, ge=0, lt=2**63)
    """The seed of samples and draws."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, values: Any) -> Any:
        """Set the defaults that depend on other keys, and expand the conditions."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if values.get("answer") == "line" and values.get("instruction") is None:
            values["instruction"] = PLAIN_INSTRUCTION
        if values.get("endpoint") == ANSWER_LOGPROB:
            # vLLM generates one token or more; this one is not used
            values["max_gen_toks"] = 1
        fewshot = values.get("fewshot")
        if isinstance(fewshot, dict):
            if isinstance(fewshot.get("instructions"), list | tuple):
                # one draw for each instruction; another number in the config is refused later
                fewshot = {"draws": max(1, len(fewshot["instructions"])), **fewshot}
                values["fewshot"] = fewshot
            # so that by default each problem is asked once with every draw
            values.setdefault("repeats", fewshot.get("draws", 1))
        sweep = values.pop("sweep", None)
        entries = values.get("conditions", [BASELINE])
        # entries of any other type are refused later
        if sweep is not None and isinstance(entries, list | tuple):
            new_entries = (entry for entry in expand_sweep(sweep) if entry not in entries)
            values["conditions"] = [*entries, *new_entries]
        return values

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        """Refuse values of several keys that do not go together."""
        # the first fault ends the checks, because an error states one fault
        for fault in chain(
            # first, because the other checks use `all_conditions`, which needs a primary contrast
            # of the run
            self._find_contrast_faults(),
            self._find_condition_faults(),
            self._find_example_faults(),
            self._find_model_faults(),
        ):
            raise ValueError(fault)
        # `model_default` is checked later, because it needs the model's generation_config
        if self.gen_kwargs != "model_default":
            self.resolve_sampling(None)
        return self

    def _find_condition_faults(self) -> Iterator[str]:
        """Yield a message for each fault of the conditions and layouts."""
        # the default layout may be `chat`, but a single layout makes no two names equal
        layouts = self.layouts or (Layout.RAW,)
        task_names = {
            self.task_name("", condition.name, layout)
            for layout, condition in product(layouts, self.all_conditions)
        }
        if len(task_names) < len(layouts) * len(self.all_conditions):
            yield (
                "conditions, layouts: names must differ, also from names with a layout "
                f"(name_layout); got {', '.join(self.condition_names)} in {', '.join(layouts)}"
            )
        for condition in self.all_conditions:
            if condition.is_in_template and getattr(condition, "placement", None):
                yield f"placement: the template has the filler of {condition.name}"
        if Layout.AS_PUBLISHED in self.layouts:
            for config_or_condition, key in product(
                (self, *self.conditions),
                ("template", "question", "instruction", "fewshot", "other_texts"),
            ):
                if getattr(config_or_condition, key, None) is not None:
                    yield f"{key}: the layout as_published has the authors' prompt"

    def _find_example_faults(self) -> Iterator[str]:
        """Yield a message for each fault of the examples, their templates and their draws."""
        fewshot = self.fewshot
        has_examples = fewshot is not None and fewshot.has_examples
        if self.repeats % self.draws_per_problem:
            yield f"repeats: expected a multiple of {self.draws} draws, or fewer than these"
        for condition in self.conditions:
            template, _ = condition.choose_templates(self.template, self.question)
            if has_examples and template and not parse_template(template).answer:
                yield f"template: examples need {{answer}}, got {template!r}"
        if self.positive_control and self.answer == "line" and not has_examples:
            yield (
                "positive_control: with `answer: line` it leaves out the examples, and there are "
                "none: set fewshot.num_fewshot (--num-fewshot 8), or positive_control to false"
            )
        if fewshot and fewshot.instructions:
            if any(condition.instruction is not None for condition in self.conditions):
                yield "fewshot.instructions: needs conditions that set no instruction"
            if len(fewshot.instructions) != fewshot.draws:
                yield (
                    f"fewshot.instructions: expected one for each of {fewshot.draws} draws, got "
                    f"{len(fewshot.instructions)}"
                )

    def _find_contrast_faults(self) -> Iterator[str]:
        """Yield a message for each fault of the baseline and the contrasts."""
        condition_names = self.condition_names
        names_text = ", ".join(condition_names)
        contrasts = [contrast_name(*contrast) for contrast in self.tested]
        # Only written contrasts are checked. The default one of a single condition names `wo`,
        # which may be in another run.
        if self.contrasts:
            for name in sorted({*chain(*self.tested)} - {*condition_names}):
                yield f"contrasts: {name} is not a condition of this run: {names_text}"
            # frozensets, because `a - b` and `b - a` compare the same conditions
            compared_pairs = {
                frozenset((condition, baseline))
                for condition, baseline in self.tested
                if condition != baseline
            }
            if len(compared_pairs) < len(contrasts):
                yield f"contrasts: expected different pairs, each once, got {', '.join(contrasts)}"
        if self.primary not in (None, *contrasts):
            contrasts_text = ", ".join(contrasts) or "(none)"
            yield f"primary: expected one of the contrasts {contrasts_text}, got {self.primary!r}"
        needs_baseline = self.baseline or self.contrasts or self.primary
        if needs_baseline and self.baseline_name not in condition_names:
            yield (
                f"baseline: expected one of the conditions {names_text}, got {self.baseline_name!r}"
            )

    def _find_model_faults(self) -> Iterator[str]:
        """Yield a message for each thing that the model or its backend cannot do."""
        prefixed_names = [
            condition.name
            for condition in self.all_conditions
            if condition.answer_prefix or getattr(condition, "placement", None) == "answer"
        ]
        if prefixed_names and self.model.applies_own_template:
            yield f"{', '.join(prefixed_names)} begins the answer, which a chat API forbids"
        knows_markers = self.model.backend == "vllm" and "reasoning_config" in self.model.model_args
        if getattr(self.gen_kwargs, "thinking_token_budget", None) and not knows_markers:
            yield (
                "gen_kwargs.thinking_token_budget: needs `model.backend: vllm` and "
                "model.model_args.reasoning_config, such as {reasoning_start_str: <think>, "
                "reasoning_end_str: </think>}"
            )
        if not self.model.name:
            yield "model.model_args: expected `pretrained`, or `model` for an API backend"
        if self.endpoint != ANSWER_LOGPROB:
            return
        is_met_by_requirement = {
            # other backends return no log-probabilities of a prompt
            f"`model.backend: vllm`, not {self.model.backend}": self.model.backend == "vllm",
            "`gen_kwargs: greedy`": self.gen_kwargs == "greedy",
            "no logprobs_mode": "logprobs_mode" not in self.model.model_args,
            "conditions without an intervention": not self.interventions,
            # the control is an immediate answer, which this endpoint measures in every condition
            "no positive_control, or `answer: line`": (
                self.answer == "line" or not self.positive_control
            ),
        }
        unmet_requirements = [
            requirement for requirement, is_met in is_met_by_requirement.items() if not is_met
        ]
        if unmet_requirements:
            yield f"endpoint: {ANSWER_LOGPROB} needs {'; '.join(unmet_requirements)}"

    @property
    def interventions(self) -> dict[str, tuple[Intervention, ...]]:
        """The interventions of the conditions that have any, by the condition's name."""
        return index_interventions(self.conditions)

    @property
    def folder(self) -> Path:
        """The default folder of the run."""
        return self.output / self.name

    @property
    def condition_names(self) -> list[str]:
        """The names of the conditions, without the reference conditions."""
        return [condition.name for condition in self.conditions]

    @property
    def baseline_name(self) -> str:
        """The name of the condition with which all others are compared."""
        return find_baseline(self.condition_names, self.baseline)

    @property
    def tested(self) -> tuple[tuple[str, str], ...]:
        """The tested contrasts, each as a condition and its baseline."""
        if self.contrasts is not None:
            return tuple(map(read_contrast, self.contrasts))
        baseline = self.baseline_name
        return tuple((name, baseline) for name in self.condition_names if name != baseline)

    @property
    def primary_contrast(self) -> tuple[str, str] | None:
        """The primary contrast; None if there is none."""
        if self.primary is not None:
            return read_contrast(self.primary)
        contrast = (STUDY_CONDITION, self.baseline_name)
        has_both = {*contrast} <= {*self.condition_names}
        return contrast if has_both and contrast in self.tested else None

    @property
    def replicated_names(self) -> tuple[str, ...]:
        """The names of the conditions that `replicates` repeats."""
        return self.primary_contrast or next(iter(self.tested), ())

    @property
    def reasoning_markers(self) -> Markers:
        """The markers of reasoning that the config sets."""
        return ((self.thinking.start, self.thinking.end),) if self.thinking else ()

    @property
    def omits_temperature(self) -> bool:
        """Whether the server gets no temperature, and so decides how it samples."""
        # the backend checks its arguments later, so `omit` may have any type here
        return "temperature" in str(self.model.model_args.get("omit"))

    @property
    def sampling_description(self) -> str:
        """A short description of the sampling."""
        description = str(self.gen_kwargs)
        if isinstance(self.gen_kwargs, ExplicitSampling):
            parameters = self.gen_kwargs.model_dump(exclude_defaults=True)
            description = ", ".join(f"{name} {value:g}" for name, value in parameters.items())
        if self.omits_temperature:
            description = f"the server's temperature instead of {description}"
        if self.repeats > 1:
            description += f", {self.repeats} samples a problem"
        if self.draws > 1:
            description += f" with {self.draws_per_problem} of {self.draws} draws of examples"
        return description

    def resolve_sampling(self, generation_config: JsonObject | None) -> Sampling:
        """The effective parameters for a model with this generation_config, None if it has none.

        Raises:
            ConfigError: a prompt has several greedy samples, which would be equal.
            ModelError: `model_default`, and vLLM cannot follow the generation_config.
        """
        parameters: JsonObject = {}
        if self.gen_kwargs == "model_default":
            parameters = read_model_default(generation_config or {})
        elif isinstance(self.gen_kwargs, ExplicitSampling):
            parameters = {"source": "explicit", **self.gen_kwargs.model_dump()}
        if self.omits_temperature:
            parameters |= {"source": "server_default", "temperature": None}
        # the answer is the first line, so the completion may end there
        stop_strings = (*self.until, "\n") if self.answer == "line" else self.until
        sampling = Sampling(max_tokens=self.max_gen_toks, stop=stop_strings, **parameters)
        if self.repeats_per_draw > 1 and sampling.is_greedy:
            raise ConfigError(
                f"repeats is {self.repeats}, and the sampling is greedy ({sampling.source}): every "
                "repeat would be the same. Set a temperature: --set gen_kwargs.temperature=0.8."
            )
        return sampling

    def identity(self) -> JsonObject:
        """The values that must be equal when a run is continued.

        These do not include paths (model, data and prompts are identified by their hashes), the
        name, the audit, what is tested (the identity of a run has its own `contrasts`), and the
        memory and the scheduling of the engine.
        """
        changed_keys = self.model_dump(exclude_defaults=True).keys()
        values = {
            key: value
            for key, value in self.values_with_defaults().items()
            if key not in _KEYS_THAT_MAY_CHANGE and (key in changed_keys or key in _RECORDED_KEYS)
        }
        if self.other_texts:
            # only their families, because a continued run may have more texts
            values["other_texts"] = sorted(self.other_texts)
        if isinstance(self.fewshot, ExamplesConfig):
            # the identity of a run has the ids or the hash of its examples instead
            del values["fewshot"]
        elif self.fewshot and not self.fewshot.instructions:
            # A run that was recorded before this key existed lacks it, and can still be continued.
            del values["fewshot"]["instructions"]
        values["model"] = {
            "backend": self.model.backend,
            "model_args": select_fixed_arguments(self.model.model_args),
        }
        return values

    @property
    def draws(self) -> int:
        """The number of draws of examples; 1 without examples."""
        return 1 if self.fewshot is None else self.fewshot.draws

    @property
    def draws_per_problem(self) -> int:
        """The number of draws with which each problem is asked."""
        return min(self.draws, self.repeats)

    @property
    def repeats_per_draw(self) -> int:
        """The number of samples of each problem with one draw of examples."""
        return self.repeats // self.draws_per_problem

    @property
    def has_fresh_samples(self) -> bool:
        """Whether each sample has a prompt of its own under some condition."""
        return any(getattr(condition, "fresh", None) == "sample" for condition in self.conditions)

    @property
    def repeats_per_prompt(self) -> int:
        """The number of samples of each prompt."""
        return 1 if self.has_fresh_samples else self.repeats_per_draw

    @cached_property
    def all_conditions(self) -> tuple[Condition, ...]:
        """The conditions and the reference conditions."""
        tested_name = self.primary_contrast[0] if self.primary_contrast else None
        return add_reference_conditions(self.conditions, self.model_dump(), tested_name)

    @staticmethod
    def task_name(
        dataset_name: str,
        condition_name: str,
        layout: Layout,
        draw: int = 0,
        sample_number: int = 0,
    ) -> str:
        """The name of a condition in a layout, with its draw of examples, and for one sample."""
        name = f"{dataset_name}_{condition_name}"
        if layout is not Layout.RAW:
            name += f"_{layout}"
        if draw:
            name += f"_draw-{draw}"
        return f"{name}_sample-{sample_number}" if sample_number else name

    def values_with_defaults(self) -> JsonObject:
        """The config as plain values with all defaults, from which it can be loaded."""
        values = self.model_dump(mode="json", exclude={"conditions", "sweep"})
        values["conditions"] = [condition.as_entry() for condition in self.conditions]
        return values

    def model_arguments(self) -> JsonObject:
        """lm-eval's model arguments, with the folder of `smollm2` in place of this name."""
        arguments = dict(self.model.model_args)
        for key in ("pretrained", "tokenizer"):
            if isinstance(arguments.get(key), str):
                arguments[key] = smollm2_model.resolve_model(arguments[key])
        if self.model.backend == "vllm":
            arguments.setdefault("seed", self.seed)
        return arguments


_WEIGHTS_KEY = re.compile(
    r"model\.model_args(\.(pretrained|model|revision|peft|lora_local_path|delta))?"
)
"""Matches keys whose override names other weights."""


def load_config(path: Path | str, overrides: Mapping[str, Any] = {}, where: str = "") -> RunConfig:
    """Read and check a run config; `overrides` are new values, by dotted keys.

    Error messages name the config as `where`; by default by its path.

    An override that names other weights drops the label, which belongs to the file's weights. An
    override of `conditions` may name conditions of the file, and drops contrasts of all others.

    Raises:
        ConfigError: the file is missing or not YAML, a key is unknown, or a value does not fit.

    Example:
        >>> config = mless.load_config("configs/runs/products.yaml", {"max_gen_toks": 50})
        >>> config.condition_names
        ['wo', 'mless', 'mful', 'random', 'mless-first', 'mful-first', 'random-first']
        >>> config.max_gen_toks
        50
    """
    path = Path(path)
    if any(map(_WEIGHTS_KEY.fullmatch, overrides)):
        # Tables would show other weights under the label of the file's weights. The label is reset
        # first, so that an override of `model.label` wins.
        overrides = {"model.label": None, **overrides}
    values = read_values(path, "runs", overrides)
    if "conditions" in overrides and isinstance(values["conditions"], list):
        # the name of a condition of the file stands for its entry
        file_entries = read_values(path, "runs").get("conditions")
        entry_by_name = index_entries(file_entries) if isinstance(file_entries, list) else {}
        values["conditions"] = [
            entry_by_name.get(entry, entry) if isinstance(entry, str) else entry
            for entry in values["conditions"]
        ]
        _drop_contrasts(values, {"contrasts", "primary"} - overrides.keys())
    return validate(RunConfig, values, where or (f"{path} with options" if overrides else path))


def _drop_contrasts(values: JsonObject, keys: Iterable[str]) -> None:
    """Drop contrasts of conditions that the config lacks, from the values of these keys.

    A key without a remaining contrast has no value, so its default holds. An empty list stays.
    """
    entries = values["conditions"]
    if values.get("sweep"):
        entries = entries + expand_sweep(values["sweep"])
    names = {entry for entry in entries if isinstance(entry, str)} | index_entries(entries).keys()
    for key in keys:
        # `primary` is one contrast, and `contrasts` a list
        contrasts = values.get(key)
        if isinstance(contrasts, str) and not names.issuperset(read_contrast(contrasts)):
            values[key] = None
        elif isinstance(contrasts, list) and contrasts:
            remaining_contrasts = [
                contrast for contrast in contrasts if names.issuperset(read_contrast(contrast))
            ]
            values[key] = remaining_contrasts or None


def config_of_model(
    model: str, overrides: Mapping[str, Any] = {}, *, dataset: str | None = None
) -> RunConfig:
    """Load configs/runs/any-model.yaml for a model: a hub name or a folder.

    A dataset is part of the run's name, because a folder holds the run of one dataset.

    Raises:
        ConfigError: a value does not fit; see `load_config`.
    """
    # absolute, because `.` and `..` are not names
    run_name = os.path.basename(os.path.abspath(model))
    # the dataset of any-model.yaml is MATH-500
    if dataset and dataset != "math500":
        run_name += "-" + Path(dataset).stem
    run_name = re.sub(r"[^A-Za-z0-9._-]+", "-", run_name)
    path = resources.folder("configs") / "runs/any-model.yaml"
    overrides = {"name": run_name, "model.model_args.pretrained": model, **overrides}
    # an error names the options, because the user has not written the file
    return load_config(path, overrides, where="the options of --model")
