"""One YAML is one experiment: its schema, its defaults, and clear refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from harness import resources, smollm2_model
from harness.constants import BASELINE, DEFAULT_SEED, MAX_GEN_TOKS, STUDIED
from harness.errors import ConfigError
from harness.experiment.conditions import (
    Condition,
    Placement,
    as_condition,
    contrast_name,
    find_baseline,
    read_contrast,
)
from harness.experiment.expand_conditions import (
    add_reference_conditions,
    choose_control,
    expand_causes,
    expand_sweep,
)
from harness.experiment.fewshot_examples import FewshotConfig
from harness.experiment.generation_settings import ExplicitSampling, Sampling, resolve_sampling
from harness.experiment.intervention_settings import Layers
from harness.experiment.problems import AnyDataset
from harness.experiment.prompt import PLAIN_INSTRUCTION, Layout
from harness.smollm2_model import SMOLLM2_LABEL
from harness.yaml_settings import Strict, explain, find_secrets, read_values


class ModelConfig(Strict):
    """Which model, by which backend, with which arguments."""

    backend: str = "vllm"
    """`vllm`, or lm-eval's name: `hf`, `local-completions`, `local-chat-completions`."""
    model_args: dict[str, Any] = Field(default_factory=dict)
    """The backend's arguments. `pretrained: smollm2` is a small real model."""
    label: str | None = None
    """Its name in tables. By default the last part of its path."""

    @model_validator(mode="before")
    @classmethod
    def _label_smollm2(cls, values: Any) -> Any:
        """SmolLM2 has one label, however it is named."""
        arguments = values.get("model_args") if isinstance(values, dict) else None
        given = arguments.get("pretrained") if isinstance(arguments, dict) else None
        is_smollm2 = smollm2_model.label_model(str(given)) == SMOLLM2_LABEL
        return {**values, "label": values.get("label") or SMOLLM2_LABEL} if is_smollm2 else values

    @field_validator("model_args")
    @classmethod
    def _without_secrets(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        if found := next(find_secrets(arguments), None):
            raise ConfigError(
                f"model.model_args{found} looks like a secret, and a config is copied into journal, receipt and logs. "
                "Remove it and set the variable that the library reads instead: HF_TOKEN for the hub, OPENAI_API_KEY "
                "for a server."
            )
        return arguments

    @property
    def name(self) -> str:
        """The model's name or path as given."""
        return str(self.model_args.get("pretrained") or self.model_args.get("model") or "")

    @property
    def takes_seeds(self) -> bool:
        """Whether each sample has a seed of its own: with vLLM, and with servers, which get it with the request."""
        return self.backend == "vllm" or "base_url" in self.model_args

    @property
    def templates_itself(self) -> bool:
        """Whether the backend takes the turns of a chat and applies a template that only it knows."""
        return self.backend.endswith("chat-completions")

    @property
    def display_name(self) -> str:
        """What tables and figures call it."""
        return self.label or self.name.rstrip("/").rpartition("/")[2]


FREE_ARGUMENTS = frozenset(
    "pretrained model tokenizer base_url gpu_memory_utilization kv_cache_memory_bytes max_num_seqs "
    "max_num_batched_tokens data_parallel_size num_concurrent max_retries timeout header batch_size "
    "device device_ids download_dir load_format "
    "distributed_executor_backend numa_bind".split()
)
"""Model arguments that a run may be continued with other values of: where things lie, how they are loaded, and how much
is done at once."""


def fixed_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The model arguments that could change a sample; `load_format: dummy` is one, as its weights are random."""
    free = FREE_ARGUMENTS - ({"load_format"} if arguments.get("load_format") == "dummy" else set())
    return {name: value for name, value in arguments.items() if name not in free}


def _read_instructions(value: Any) -> Any:
    """Texts as they are, or those of a file, one a line."""
    if isinstance(value, (str, Path)):
        try:
            lines = map(str.strip, Path(value).read_text(encoding="utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{value}: {error}") from None
        return tuple(line for line in lines if line)
    return value


class AcrossConfig(Strict):
    """Other instructions, under which every condition is asked too."""

    instructions: Annotated[tuple[str, ...], BeforeValidator(_read_instructions)] = Field(
        min_length=1, max_length=99
    )
    """Texts, or a file with one a line."""


Contrast = Annotated[str, AfterValidator(lambda text: contrast_name(*read_contrast(text)))]


class RunConfig(Strict):
    """One experiment."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")
    """The run's name, also that of its folder."""
    model: ModelConfig
    """Which model, and who runs it."""
    dataset: AnyDataset = "math500"
    """`math500`, or a mapping: a file, or problems that are made."""
    conditions: tuple[Annotated[Any, BeforeValidator(as_condition)], ...] = Field(min_length=1)
    """`wo`, `mless`, `mful`, `random`, or mappings."""
    sweep: None = None
    """A condition for each combination: {unit: ["/", "."], count: [10, 25]}."""
    baseline: str | None = None
    """The condition that the others are compared with. By default `wo`, else the first."""
    contrasts: tuple[Contrast, ...] | None = None
    """The tested differences. By default every condition's from the baseline."""
    primary: Contrast | None = None
    """The contrast that the run is about. By default `mless` less the baseline."""
    replicates: int = Field(default=1, ge=1, le=2)
    """How often both sides of the primary contrast, else of the first, are run: 2 gives A/A."""
    across: AcrossConfig | None = None
    """Other instructions that all conditions are asked under."""
    positive_control: bool = False
    """Whether an answer at once, or with `answer: line` one without examples, is asked for too, which must harm."""
    layouts: tuple[Layout, ...] = ()
    """`raw`, `chat`, or `as_published` (the authors' code). By default `chat` where the tokenizer has a template."""
    instruction: str | None = None
    """Another instruction than the study's. With `answer: line` by default `Answer the question.`"""
    fewshot: FewshotConfig | None = None
    """Examples before the question. By default none."""
    answer: Literal["box", "line"] = "box"
    """What is read: the last `box`, or the first `line`, with which a completion ends."""
    gen_kwargs: Literal["greedy", "model_default"] | ExplicitSampling = "greedy"
    """`greedy`, `model_default` (the model's generation_config), or a mapping."""
    repeats: int = Field(default=1, ge=1)
    """How often each problem is asked, with another seed each time; all draws of examples together. Where it is less
    than the draws, each problem is asked with so many of them."""
    max_gen_toks: int = Field(default=MAX_GEN_TOKS, ge=1)
    """The most tokens of a completion."""
    until: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Strings that end a completion."""
    record_attention: Literal["all"] | Layers | None = Field(
        default=None, union_mode="left_to_right"
    )
    """The layers whose attention is stored, for the first sample of each prompt: `1-3`, a list or `all`. See
    docs/probe.md."""
    audit: bool = True
    """Whether other graders judge each completion too."""
    output: Path = Path("results")
    """The folder of run folders."""
    seed: int = Field(default=DEFAULT_SEED, ge=0, lt=2**63)
    """The seed of samples and of everything drawn."""

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, values: Any) -> Any:
        """The conditions of a sweep join the others. Where no box is read, no instruction asks for one.

        Each problem is asked once with each draw of examples, unless told.
        """
        if (
            isinstance(values, dict)
            and values.get("answer") == "line"
            and values.get("instruction") is None
        ):
            values = {**values, "instruction": PLAIN_INSTRUCTION}
        shown = values.get("fewshot") if isinstance(values, dict) else None
        if isinstance(shown, dict) and "draws" in shown:
            values = {"repeats": shown["draws"], **values}
        if not isinstance(values, dict):
            return values
        if isinstance(entries := values.get("conditions"), (list, tuple)):
            values = {**values, "conditions": expand_causes(entries)}
        if values.get("sweep") is None:
            return values
        own, swept = values.get("conditions", [BASELINE]), expand_sweep(values["sweep"])
        if isinstance(own, (list, tuple)):  # anything else is refused as it is
            own = [*own, *(one for one in swept if one not in own)]
        return {**values, "sweep": None, "conditions": own}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [condition.name for condition in self.conditions]
        layouts = self.layouts or (Layout.RAW,)
        tasks = [
            self.task_name("x", one.name, layout)
            for layout in layouts
            for one in self.all_conditions
        ]
        pairs = [frozenset(pair) for pair in self.tested]
        bad_pairs = [
            pair
            for pair in self.tested
            if len({*pair} & {*names}) < 2 or pairs.count(frozenset(pair)) > 1
        ]
        odd = ", ".join(contrast_name(*pair) for pair in bad_pairs if self.contrasts)
        known = [contrast_name(*pair) for pair in self.tested]
        own, shown = self.instruction is not None, self.fewshot
        listed, baseline = ", ".join(names), self.baseline_name
        published = Layout.AS_PUBLISHED in self.layouts
        needs_baseline = self.baseline or self.contrasts or self.primary
        begun = [
            one.name
            for one in self.all_conditions
            if one.answer_prefix or one.placement is Placement.ANSWER
        ]
        for bad, message in (
            (
                len(set(tasks)) < len(tasks),
                f"conditions: names must differ, also as name_layout; got {listed}",
            ),
            (
                published and (own or any(one.instruction for one in self.all_conditions)),
                "instruction: the layout as_published has the authors' own",
            ),
            (
                self.repeats % self.draws_per_problem,
                f"repeats: expected a multiple of {self.draws} draws, or fewer than these",
            ),
            (published and shown, "fewshot: as_published has none"),
            (
                self.positive_control and self.answer == "line" and not shown,
                "positive_control: there are no examples to leave out",
            ),
            (
                shown and shown.path and shown.draws > 1,
                "fewshot.draws: the examples of a file are one draw",
            ),
            (
                self.across and any(one.instruction for one in self.conditions),
                "across: a condition has its own instruction",
            ),
            (odd, f"contrasts: expected pairs of {listed}, each once, got {odd}"),
            (
                self.primary not in (None, *known),
                f"primary: expected one of the contrasts {', '.join(known) or '(none)'}, got {self.primary!r}",
            ),
            (
                needs_baseline and baseline not in names,
                f"conditions: {listed} lack the baseline {baseline}",
            ),
            (
                begun and self.model.templates_itself,
                f"{', '.join(begun)} begins the answer, which a chat API forbids",
            ),
            (
                self.record_attention and BASELINE not in names,
                f"record_attention: tokens are told by their place in the prompt of {BASELINE}, which is not asked",
            ),
            (
                not self.model.name,
                "model.model_args: expected `pretrained`, or `model` for an API backend",
            ),
        ):
            if bad:
                raise ValueError(message)
        if self.gen_kwargs != "model_default":
            self.resolve_sampling(None)
        return self

    @property
    def folder(self) -> Path:
        """Where the run goes by default."""
        return self.output / self.name

    @property
    def baseline_name(self) -> str:
        """The condition that the others are compared with."""
        return find_baseline([condition.name for condition in self.conditions], self.baseline)

    @property
    def tested(self) -> tuple[tuple[str, str], ...]:
        """The contrasts, each a condition and what it is compared with."""
        if self.contrasts is not None:
            return tuple(map(read_contrast, self.contrasts))
        baseline = self.baseline_name
        return tuple(
            (condition.name, baseline)
            for condition in self.conditions
            if condition.name != baseline
        )

    @property
    def primary_contrast(self) -> tuple[str, str] | None:
        """The contrast that the run is about; None if there is none."""
        if self.primary is not None:
            return read_contrast(self.primary)
        usual = (STUDIED, self.baseline_name)
        there = set(usual) <= {condition.name for condition in self.conditions}
        return usual if there and usual in self.tested else None

    @property
    def replicated(self) -> tuple[str, ...]:
        """The conditions that are run again, if any are: see `replicates`. Under other instructions they are too."""
        sides = self.primary_contrast or next(iter(self.tested), ())
        return (
            *sides,
            *(condition.name for condition in self.all_conditions if condition.of in sides),
        )

    @property
    def recorded_layers(self) -> list[int] | Literal["all"]:
        """The layers whose attention is recorded, counted from 0."""
        if self.record_attention == "all":
            return "all"
        return sorted({layer - 1 for layer in self.record_attention or ()})

    @property
    def sampling_words(self) -> str:
        """The sampling in a few words."""
        chosen = str(self.gen_kwargs)
        if isinstance(self.gen_kwargs, ExplicitSampling):
            chosen = ", ".join(
                f"{k} {v:g}" for k, v in self.gen_kwargs.model_dump(exclude_defaults=True).items()
            )
        many = f", {self.repeats} samples a problem" if self.repeats > 1 else ""
        number = f"{self.draws_per_problem} of " if self.draws_per_problem < self.draws else ""
        return (
            chosen
            + many
            + (f" with {number}{self.draws} draws of examples" if self.draws > 1 else "")
        )

    def resolve_sampling(self, generation_config: Mapping[str, Any] | None) -> Sampling:
        """The parameters in force for a model with this generation_config (None: it has none, or none was read).

        Raises:
            ConfigError: several greedy samples of one problem.
            ModelError: `model_default`, and there is no generation_config.
        """
        until = (*self.until, *(["\n"] if self.answer == "line" else []))
        sampling = resolve_sampling(self.gen_kwargs, self.max_gen_toks, until, generation_config)
        if self.repeats_per_draw > 1 and sampling.greedy:
            asked = f"repeats is {self.repeats}, and the sampling is greedy"
            raise ConfigError(f"{asked} ({sampling.source}): every repeat would be the same.")
        return sampling

    def identity(self) -> dict[str, Any]:
        """What must stay the same for a run to be continued.

        Left out: where things lie (model, data and prompts are known by their hashes), the run's name, whether other
        graders look over it, what is tested (the identity holds that as `contrasts`), and how much memory the engine
        may have and how it schedules.
        """
        left_out = ("output", "audit", "name", "dataset", "primary", "contrasts", "sweep")
        # runs that were begun before these came have none
        off = ("baseline", "across", "positive_control", "fewshot", "record_attention")
        values = {
            name: value
            for name, value in self.as_written().items()
            if name not in left_out
            and (value or name not in off)
            and (name, value) != ("answer", "box")
        }
        if self.fewshot is not None:
            del values["fewshot"]["path"]
        arguments = fixed_arguments(self.model.model_args)
        return {**values, "model": {"backend": self.model.backend, "model_args": arguments}}

    @property
    def draws(self) -> int:
        """How many draws of examples there are; 1 without any."""
        return 1 if self.fewshot is None else self.fewshot.draws

    @property
    def draws_per_problem(self) -> int:
        """With how many of the draws a problem is asked."""
        return min(self.draws, self.repeats)

    @property
    def repeats_per_draw(self) -> int:
        """How often each prompt is asked with one draw of examples."""
        return self.repeats // self.draws_per_problem

    @property
    def all_conditions(self) -> tuple[Condition, ...]:
        """The conditions and the reference conditions."""
        return add_reference_conditions(
            self.conditions,
            instructions=self.across.instructions if self.across else (),
            control=choose_control(self.answer) if self.positive_control else None,
        )

    @staticmethod
    def task_name(dataset: str, condition: str, layout: Layout, draw: int = 0) -> str:
        """What lm-eval calls one condition in one layout, with one of several draws of examples."""
        name = f"{dataset}_{condition}" + ("" if layout is Layout.RAW else f"_{layout}")
        return f"{name}_draw-{draw}" if draw else name

    def as_written(self) -> dict[str, Any]:
        """The config as plain values that load again, all defaults spelled out."""
        values = self.model_dump(mode="json", exclude={"conditions", "sweep"})
        values["conditions"] = [condition.recorded() for condition in self.conditions]
        return values

    def model_arguments(self) -> dict[str, Any]:
        """lm-eval's model arguments; `smollm2` is its folder."""
        arguments = dict(self.model.model_args)
        for key in ("pretrained", "tokenizer"):
            if isinstance(arguments.get(key), str):
                arguments[key] = smollm2_model.resolve_model(arguments[key])
        if self.model.backend == "vllm":
            arguments.setdefault("seed", self.seed)
            # lm-eval reads the tokenizer at its newest revision unless told
            if "revision" in arguments and "tokenizer" not in arguments:
                arguments.setdefault("tokenizer_revision", arguments["revision"])
        return arguments


_WEIGHTS = re.compile(
    r"model\.model_args(\.(pretrained|model|revision|peft|lora_local_path|delta))?="
)
"""The overrides that name other weights."""


def load_config(path: Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read and check a run config; `overrides` are `key=value` with dotted keys and YAML values.

    A label stands for the weights that the file names, so an override that names others drops it. Where one lists
    conditions, the file's own are known by name, and its contrasts of conditions that are not asked are left out.

    Raises:
        ConfigError: the file is missing or not YAML, a key is unknown, or a value does not fit.
    """
    overrides = list(overrides)
    if any(map(_WEIGHTS.match, overrides)):
        overrides.insert(0, "model.label=null")
    values = read_values(path, "runs", overrides)
    changed = {one.partition("=")[0] for one in overrides}
    if "conditions" in changed and isinstance(values["conditions"], list):
        written = read_values(path, "runs").get("conditions")
        mappings = [
            one for one in (written if isinstance(written, list) else []) if isinstance(one, dict)
        ]
        own = {one["name"]: one for one in mappings if isinstance(one.get("name"), str)}
        values["conditions"] = [
            own.get(one, one) if isinstance(one, str) else one for one in values["conditions"]
        ]
        swept = expand_sweep(values["sweep"]) if values.get("sweep") else []
        names = [
            one.get("name") if isinstance(one, dict) else one
            for one in [*values["conditions"], *swept]
        ]
        for key in {"contrasts", "primary"} - changed:
            if told := values.get(key):
                every = told if isinstance(told, list) else [told]
                kept = [one for one in every if all(name in names for name in read_contrast(one))]
                values[key] = None if not kept else kept[0] if key == "primary" else kept
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, str(path))) from None


def config_of_model(model: str, overrides: Iterable[str] = ()) -> RunConfig:
    """The config of a run that names its model and nothing else: configs/runs/any-model.yaml.

    Args:
        model: Hub name or folder.
        overrides: As of `load_config`.

    Raises:
        ConfigError: a value does not fit.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name)
    own = [f"name={json.dumps(name)}", f"model.model_args.pretrained={json.dumps(model)}"]
    return load_config(resources.folder("configs") / "runs" / "any-model.yaml", [*own, *overrides])
