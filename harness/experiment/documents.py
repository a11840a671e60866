"""Checked prompts for a model, and the documents in which lm-eval gets them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import resources
from harness.constants import MAX_GEN_TOKS
from harness.errors import ConfigError
from harness.experiment.chat_template import refuse_unread, template_switches
from harness.experiment.conditions import Condition
from harness.experiment.problems import Dataset, Problem
from harness.experiment.prompt import Layout, Prompt, Segment
from harness.experiment.token_checks import ConditionPrompts, PromptBuilder, check_context
from harness.experiment.tokenizer import context_length, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ADDED = frozenset(("condition", "layout", "system", "user", "segments"))
"""What `make_document` adds to a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTokenizer:
    """A model's tokenizer and context length: all that its prompts depend on.

    Attributes:
        name: For messages.
        tokenizer: Its tokenizer.
        context_length: Positions, None where unknown.
        switches: What its chat template is told; see `chat_template.template_switches`.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    context_length: int | None
    switches: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> ModelTokenizer | None:
        """The model that lm-eval's model arguments name, None where they name none that can be loaded here.

        `tokenizer` and `pretrained` are loaded or refused. A bare `model` (the API backends) counts only if it is a
        folder: a served model may have any name.
        """
        served = str(arguments.get("model") or "")
        weights = arguments.get("pretrained") or (served if Path(served).is_dir() and served else None)
        tokenizer = arguments.get("tokenizer") or weights
        if not isinstance(tokenizer, str) or not (weights is None or isinstance(weights, str)):
            return None
        trust = arguments.get("trust_remote_code") in (True, "True", "true")
        loaded = load_tokenizer(
            resources.resolve_model(tokenizer),
            revision=arguments.get("tokenizer_revision") or arguments.get("revision"),
            trust_remote_code=trust,
        )
        length = _stated_length(arguments)
        if weights is not None and tokenizer == weights:
            own = context_length(
                resources.resolve_model(weights), revision=arguments.get("revision"), trust_remote_code=trust
            )
            if length is not None and own is not None and length > own and not arguments.get("hf_overrides"):
                raise ConfigError(f"The context length {length} is over what {weights} was made for, {own}.")
            length = own if length is None else length
        switches = template_switches(arguments)
        refuse_unread(loaded, switches)
        return cls(name=tokenizer, tokenizer=loaded, context_length=length, switches=switches)

    def layouts(self) -> tuple[Layout, ...]:
        """The sound layouts that the model can be run in."""
        return (Layout.RAW, Layout.CHAT) if self.tokenizer.chat_template else (Layout.RAW,)


def _stated_length(arguments: Mapping[str, Any]) -> int | None:
    """The context length that the arguments state.

    Raises:
        ConfigError: a completions API without `max_length`. lm-eval then takes 2048, keeps 2047 for prompt and
            completion together, and cuts the front of every prompt where that is not enough.
    """
    stated = arguments.get("max_model_len") or arguments.get("max_length")
    base_url = str(arguments.get("base_url") or "").rstrip("/")
    if stated is not None and not (str(stated).isdigit() and int(stated) > 0):
        raise ConfigError(
            f"The context length (max_model_len, max_length): expected a whole number above 0, got {stated!r}."
        )
    if not base_url or base_url.endswith("chat/completions"):
        return None if stated is None else int(stated)
    if stated is None:
        raise ConfigError(
            "The served model's context is not known, and lm-eval cuts prompts to 2048 tokens unless told: add the "
            "model argument max_length, such as max_length=4096."
        )
    return int(stated) - 1


def make_document(problem: Problem, prompt: Prompt, condition: Condition, layout: Layout) -> dict[str, Any]:
    """A problem under one condition for lm-eval: its fields, the condition, `system` and `user` text, the segments."""
    return {
        **asdict(problem),
        "condition": condition.name,
        "layout": "as_published" if layout is Layout.AS_PUBLISHED else "sound",
        "system": prompt.system,
        "user": prompt.user,
        "segments": [asdict(segment) for segment in prompt.segments],
    }


def document_prompt(document: Mapping[str, Any]) -> Prompt:
    """The prompt that a document of `make_document` holds, segments and turns."""
    segments = tuple(Segment(**segment) for segment in document["segments"])
    size, length = 0, 0
    while length < len(document["system"]):
        length += len(segments[size].text)
        size += 1
    return Prompt(segments=segments, system_size=size)


def is_ours(document: Mapping[str, Any]) -> bool:
    """Whether a document is one of our tasks', rather than another's."""
    return _ADDED <= document.keys()


def hash_problem(document: Mapping[str, Any], target: str | None) -> str:
    """Hash of what is asked and of its answer, the same under all conditions of our tasks.

    Args:
        document: A document of ours or of another task.
        target: Its gold answer.
    """
    added = _ADDED if is_ours(document) else ()
    asked = {name: value for name, value in document.items() if name not in added}
    return hashlib.sha256(json.dumps([asked, target], sort_keys=True).encode()).hexdigest()


def build_checked_prompts(
    dataset: Dataset,
    conditions: Iterable[Condition],
    layout: Layout,
    model: ModelTokenizer | None,
    *,
    max_gen_toks: int = MAX_GEN_TOKS,
    instruction: str | None = None,
) -> list[ConditionPrompts]:
    """Build every prompt of the conditions in one layout, and refuse what breaks a guarantee.

    Args:
        dataset: The problems.
        conditions: The conditions.
        layout: The layout of all prompts.
        model: Its tokenizer and context; None where they are not known, and then nothing is checked.
        max_gen_toks: Tokens that must fit the context after the longest prompt.
        instruction: Another system prompt than the layout's own.

    Raises:
        PromptMismatchError: a guarantee is broken, or a prompt and its completion do not fit the context.
    """
    texts = {problem.id: problem.problem for problem in dataset.problems}
    builder = PromptBuilder(
        texts,
        layout,
        model.tokenizer if model else None,
        instruction=instruction,
        switches=model.switches if model else {},
    )
    found = []
    for condition in conditions:
        built = builder.build(condition)
        if model is not None:
            built.refuse(model.name)
            if model.context_length is not None:
                check_context(built, model.context_length, max_gen_toks)
        found.append(built)
    return found
