"""The experimental conditions: what is inserted into the prompt, how much of it, and where.

A condition is a filler and a placement. The study compares no filler (`wo`) with 55 meaningless
tokens (`mless`), one meaningful word repeated 55 times (`mful`) and one unrelated sentence of the
same length (`random`). A condition is of the kind that has the key of its filler. Configs and
records are read into these kinds, and prompts are built from them.

A run adds reference conditions, about which nothing is claimed: other texts in place of the tested
filler, and a positive control, which must lower the accuracy. Their kind is a field. Nothing is
read from a name, so a config may give its conditions any names but those of the study.

Source: Shi et al., "Meaningless Tokens, Meaningful Gains", arXiv 2510.01032, sections 2 and 4.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, StrictInt, model_validator

from harness.constants import BASELINE, DEFAULT_SEED, STUDY_CONDITION, JsonObject, Row
from harness.errors import ConfigError, list_near
from harness.experiment.intervention_settings import Intervention, as_list, concerns_filler
from harness.experiment.prompts.fillers import estimate_tokens
from harness.experiment.prompts.template_parser import FILLER, Template, parse_template
from harness.yaml_settings import Strict, validate

STUDY_FILLER_TOKENS = 55
"""Filler tokens in the main setting of the authors' code. The paper sweeps 0 to 70."""
MOST_FILLER_TOKENS = 100_000
"""A longer filler fits into no model's context, and would take hours to build."""

SENTENCES: tuple[str, ...] = tuple(
    yaml.safe_load((Path(__file__).parent / "sentences.yaml").read_text(encoding="utf-8"))
)
"""Unrelated sentences. The filler of the condition `random` is cut from the fourth."""
FEWEST_SENTENCE_TOKENS = min(map(estimate_tokens, SENTENCES))
"""Every sentence has at least this number of tokens."""
PROMPT_KEYS = ("template", "question", "instruction", "answer_prefix")
"""What a condition without a filler can change in the prompt."""

ReferenceKind = Literal["other text", "positive control"]
"""A kind of condition that a run adds to those of its config."""
REFERENCE_FIELDS = ("kind", "of", "number", "family")
"""The recorded fields of a reference condition. Each follows from other keys."""
ReferenceConditions = Mapping[str, Mapping[str, Any]]
"""The REFERENCE_FIELDS of reference conditions, by name."""
OTHER_TEXT: ReferenceKind = "other text"
POSITIVE_CONTROL: ReferenceKind = "positive control"


class Placement(StrEnum):
    """Where in the prompt a filler stands that the template does not mention.

    `before_system`: before the instruction. `between`: after the instruction, which the study finds
    best. `random`: at a random word of instruction or problem. `answer`: at the beginning of the
    model's answer, which the model continues.
    """

    BEFORE_SYSTEM = "before_system"
    BETWEEN = "between"
    RANDOM = "random"
    ANSWER = "answer"


class Condition(Strict):
    """Without a filler, a condition can change other things in the prompt, or the model."""

    filler_key: ClassVar[str | None] = None
    """The key of the filler in a config, by which the class of a condition is recognised."""
    family: ClassVar[str | None] = None
    """The family of `other_texts` whose texts are of this kind."""
    inner_keys: ClassVar[list[str]] = ["unit", "sentence", "text", "random_ids"]
    """The keys of fillers, which the message about an unknown key suggests."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_-]+$")
    """Its name in tables, such as `mless-10`."""
    template: Template | None = None
    """Its own template of examples and question."""
    question: Template | None = None
    """Its own template of the question, if the question differs from the examples."""
    instruction: str | None = Field(default=None, min_length=1)
    """Its own system prompt, instead of the run's `instruction`."""
    answer_prefix: str = ""
    """The beginning of the model's answer, such as `Let me think.`"""
    intervention: Annotated[
        tuple[Intervention, ...], Field(min_length=1), BeforeValidator(as_list)
    ] = ()
    """A change inside the model, or a list of changes. Those of an MLP are made in the order of the
    list; of several weights of a token the last one holds."""

    kind: ReferenceKind | None = Field(default=None, exclude=True)
    """The kind of reference condition. None: a condition of the config."""
    of: str | None = Field(default=None, exclude=True)
    """The name of the condition whose filler this text replaces."""
    number: int = Field(default=0, exclude=True)
    """The number of the other text in its family, from 1."""
    has_examples: bool = Field(default=True, exclude=True)
    """Whether the examples of the run stand before the question."""
    is_in_template: bool = Field(default=False, exclude=True)
    """Whether its template, or that of the run, mentions the filler."""

    @model_validator(mode="after")
    def _check_intervention(self) -> Self:
        placement = getattr(self, "placement", None)
        for change in self.intervention:
            changes_filler = concerns_filler(vars(change))
            if changes_filler and not self.filler_key:
                raise ValueError("intervention: expected a condition with a filler")
            if change.kind == "filler" and len(self.intervention) > 1:
                raise ValueError("intervention: expected the kind filler alone, not in a list")
            if changes_filler and change.kind == "mlp_output" and placement is Placement.ANSWER:
                raise ValueError("intervention: mlp_output cannot change a filler in the answer")
        return self

    @property
    def stated_token_count(self) -> int | None:
        """The stated number of filler tokens: 0 without a filler, None if it is not stated."""
        return 0

    @property
    def filler_tokens(self) -> int | None:
        """The exact number of filler tokens in every prompt; None if there is no such number."""
        return self.stated_token_count

    @property
    def changes_text(self) -> str:
        """The other changes of the prompt besides the filler, and the intervention."""
        changes = {key: getattr(self, key) for key in (*PROMPT_KEYS, "intervention")}
        return ", ".join(f"{key} {value!r}" for key, value in changes.items() if value)

    @property
    def reference_fields(self) -> JsonObject:
        """The fields of a reference condition; empty for a condition of the config."""
        return {key: getattr(self, key) for key in REFERENCE_FIELDS} if self.kind else {}

    def choose_templates(
        self, template: str | None, question_template: str | None
    ) -> tuple[str | None, str | None]:
        """The templates of examples and of the question: its own, else those of the run.

        Args:
            template: The run's template.
            question_template: The run's template of the question.
        """
        # the run's template of the question belongs to the run's template
        if self.template:
            template = self.template
            question_template = None
        return template, self.question or question_template or template

    def mentions_filler(self, template: str | None, question_template: str | None) -> bool:
        """Whether one of `choose_templates` has a filler."""
        return any(
            FILLER in parse_template(chosen_template).pieces
            for chosen_template in self.choose_templates(template, question_template)
            if chosen_template
        )

    def without_filler(self) -> "Condition":
        """A condition without the filler and the intervention, to compare the tokens with."""
        # not validated, because these fields of this condition are valid
        return Condition.model_construct(name=BASELINE, **self.model_dump(include={*PROMPT_KEYS}))

    def as_entry(self) -> str | JsonObject:
        """The entry of a config from which `as_condition` reads this condition again."""
        if self == NAMED_CONDITIONS.get(self.name):
            return self.name
        return {
            key: value
            for key, value in self.model_dump(mode="json").items()
            if value not in (None, "", [])
        }

    def describe(self) -> Row:
        """The columns that tables have of a condition: all that a sweep can vary.

        Returns:
            `filler`: the repeated text or the kind of filler, and its seed; None without a filler.
            `filler_tokens`: the exact length, 0 without a filler, None if there is none.
            `placement`: None without a filler. `words`: the other changes.
        """
        return {
            "filler": None,
            "filler_tokens": self.filler_tokens,
            "placement": None,
            "words": self.changes_text,
        }


class FilledCondition(Condition):
    """All conditions with a filler also have these keys."""

    filler_key: ClassVar[str]
    inner_keys: ClassVar[list[str]] = []

    placement: Placement | None = None
    """Where a filler stands that no template mentions: `before_system`, `between` (by default),
    `random`, or the model's `answer`."""
    seed: int = DEFAULT_SEED
    """The seed of random tokens and placements."""

    @property
    def stated_token_count(self) -> int | None:
        """The stated number of filler tokens; None if it is not stated."""
        # without `count`, the value of the filler's own key may be the number, as in `random_ids`
        count = getattr(self, "count", getattr(self, self.filler_key))
        return count if isinstance(count, int) else None

    def describe(self) -> Row:
        """The columns that tables have of a condition; see `Condition.describe`."""
        filler_value = getattr(self, self.filler_key)
        description_by_key = {
            "unit": filler_value,
            "sentence": f"sentence {filler_value}",
            "text": "own text",
            "random_ids": "random tokens",
        }
        description = description_by_key[self.filler_key]
        is_drawn = isinstance(self, RandomCondition) or self.placement is Placement.RANDOM
        if is_drawn and self.seed != DEFAULT_SEED:
            description += f", seed {self.seed}"
        if fresh := getattr(self, "fresh", None):
            description += f", new for each {fresh}"
        placement = "template" if self.is_in_template else self.placement or Placement.BETWEEN
        return {**super().describe(), "filler": description, "placement": str(placement)}


class UnitCondition(FilledCondition):
    """A repeated text."""

    filler_key: ClassVar = "unit"

    unit: str = Field(min_length=1)
    """A text of one token, such as `/`."""
    count: StrictInt = Field(default=STUDY_FILLER_TOKENS, ge=1, le=MOST_FILLER_TOKENS)
    """The number of filler tokens."""

    @property
    def filler_tokens(self) -> int | None:
        """Blank units cannot promise a number of tokens, since tokenizers merge blanks."""
        return self.count if self.unit.strip() else None


class SentenceCondition(FilledCondition):
    """An unrelated sentence."""

    filler_key: ClassVar = "sentence"
    family: ClassVar = "sentences"

    sentence: StrictInt = Field(ge=1, le=len(SENTENCES))
    """Its number in sentences.yaml."""
    count: StrictInt = Field(default=STUDY_FILLER_TOKENS, ge=1, le=FEWEST_SENTENCE_TOKENS)
    """The number of filler tokens."""


class TextCondition(FilledCondition):
    """Your own text, of any number of tokens."""

    filler_key: ClassVar = "text"

    text: str = Field(min_length=1)
    """The text. `{row.COLUMN}` stands for a column of the data."""


class RandomCondition(FilledCondition):
    """Random words of the model's vocabulary."""

    filler_key: ClassVar = "random_ids"
    family: ClassVar = "random_tokens"

    random_ids: StrictInt = Field(ge=1, le=MOST_FILLER_TOKENS)
    """Their number of tokens."""
    fresh: Literal["problem", "sample"] | None = None
    """Draw another text of this length for each `problem`, or for each `sample`."""


FILLED_CLASSES = (UnitCondition, SentenceCondition, TextCondition, RandomCondition)
"""The classes of conditions with a filler."""
CLASS_BY_KEY = {filled_class.filler_key: filled_class for filled_class in FILLED_CLASSES}
"""The class of a condition, by the key of its filler in a config."""


NAMED_CONDITIONS = {
    BASELINE: Condition(name=BASELINE),
    STUDY_CONDITION: UnitCondition(name=STUDY_CONDITION, unit="/"),
    "mful": UnitCondition(name="mful", unit="he"),
    # the study calls it random, because the sentence was once drawn at random
    "random": SentenceCondition(name="random", sentence=4),
}
"""The study's four conditions by name, in the order of tables and figures."""


def as_condition(entry: Any) -> Condition:
    """Read an entry of a config: a name of the study's conditions, or a mapping.

    Raises:
        ConfigError: the entry is neither, describes no condition, or has the name of a condition of
            the study.
    """
    if isinstance(entry, str) and entry in NAMED_CONDITIONS:
        return NAMED_CONDITIONS[entry]
    if not isinstance(entry, Mapping):
        raise ConfigError(
            f"Expected a condition, one of {list_near(str(entry), NAMED_CONDITIONS)}, or a mapping "
            f"such as {{name: dots, unit: '.'}}, got {entry!r}."
        )
    location = f"condition {entry.get('name', '')!r}"
    values = {key: value for key, value in entry.items() if value is not None}
    filler_keys = [key for key in CLASS_BY_KEY if key in values]
    if len(filler_keys) > 1:
        raise ConfigError(f"{location}: expected one filler, got {' and '.join(filler_keys)}.")
    condition_class = CLASS_BY_KEY[filler_keys[0]] if filler_keys else Condition
    condition = validate(condition_class, values, location)
    if not (condition.filler_key or condition.changes_text):
        raise ConfigError(
            f"{location} changes nothing: expected one of "
            f"{', '.join((*CLASS_BY_KEY, *PROMPT_KEYS))}."
        )
    if condition.name in NAMED_CONDITIONS:
        raise ConfigError(f"{location} has the name of a condition of the study.")
    return condition


def index_interventions(conditions: Iterable[Condition]) -> dict[str, tuple[Intervention, ...]]:
    """The interventions by the name of their condition."""
    return {
        condition.name: condition.intervention for condition in conditions if condition.intervention
    }


def find_baseline(condition_names: Sequence[str], configured_name: str | None) -> str:
    """Choose the baseline of a run: the configured condition, else `wo`, else the first.

    A single condition is compared with `wo` of another run.
    """
    if configured_name:
        return configured_name
    if BASELINE in condition_names or len(condition_names) < 2:
        return BASELINE
    return condition_names[0]


def contrast_name(condition_name: str, baseline_name: str) -> str:
    """The text of a contrast of two conditions: `mless - wo`."""
    return f"{condition_name} - {baseline_name}"


def read_contrast(contrast: str) -> tuple[str, str]:
    """Read a contrast such as `mless - wo` into the names of the condition and its baseline.

    Raises:
        ConfigError: the text is not two names with ` - ` between them.
    """
    condition_name, _, baseline_name = (name.strip() for name in str(contrast).partition(" - "))
    if not (condition_name and baseline_name):
        raise ConfigError(
            f"Expected a contrast of two conditions, such as 'mless - wo', got {contrast!r}."
        )
    return condition_name, baseline_name
