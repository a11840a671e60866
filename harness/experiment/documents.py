"""Problems and a condition become lm-eval documents, checked where the model's tokenizer is known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import resources
from harness.errors import ConfigError
from harness.experiment.conditions import Condition
from harness.experiment.problems import Dataset
from harness.experiment.prompt import Layout, Prompt, Segment, build_prompt
from harness.experiment.token_checks import ConditionCheck, check_condition, check_context
from harness.experiment.tokens import context_length, fit_filler, has_system_turn, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_GEN_TOKS = 2048
"""Tokens generated at most, as in the authors' code."""


_ADDED = frozenset(("condition", "layout", "system", "user", "segments"))
"""What `build_documents` adds to a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What of a model the prompts depend on.

    Attributes:
        name: For messages.
        tokenizer: Its tokenizer.
        context_length: Positions, None where unknown.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    context_length: int | None

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Model | None:
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
                raise ConfigError(
                    f"The context length {length} is over what {weights} was made for, {own}. "
                    "Lower max_model_len (or max_length)."
                )
            length = own if length is None else length
        return cls(name=tokenizer, tokenizer=loaded, context_length=length)

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
    if not base_url or base_url.endswith("chat/completions"):
        return None if stated is None else int(stated)
    if stated is None:
        raise ConfigError(
            "The completions API cuts prompts to `max_length`, 2048 by default, which leaves no room for one. "
            "Add the served model's context to --model_args, such as max_length=4096."
        )
    return int(stated) - 1


def build_documents(
    dataset: Dataset,
    condition: Condition,
    layout: Layout,
    *,
    model: Model | None = None,
    instruction: str | None = None,
) -> list[dict[str, Any]]:
    """One document a problem: the problem's fields, the condition, `system` and `user` text, and the segments."""
    tokenizer = model.tokenizer if model else None
    inserted = fit_filler(condition, tokenizer)
    system_turn = has_system_turn(tokenizer)
    documents = []
    for problem in dataset.problems:
        prompt = build_prompt(
            problem.problem,
            condition,
            filler_text=inserted,
            layout=layout,
            key=problem.id,
            system_turn=system_turn,
            instruction=instruction,
        )
        documents.append(
            {
                **asdict(problem),
                "condition": condition.name,
                "layout": "as_published" if layout is Layout.AS_PUBLISHED else "sound",
                "system": prompt.system,
                "user": prompt.user,
                "segments": [asdict(segment) for segment in prompt.segments],
            }
        )
    return documents


def document_prompt(document: Mapping[str, Any]) -> Prompt:
    """The prompt that a document of `build_documents` holds, segments and turns."""
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


def check_documents(
    dataset: Dataset,
    condition: Condition,
    layouts: Sequence[Layout],
    model: Model,
    *,
    max_gen_toks: int = MAX_GEN_TOKS,
    instruction: str | None = None,
) -> list[ConditionCheck]:
    """Check every prompt of the condition in each layout.

    Raises:
        PromptMismatchError: a guarantee is broken, or a prompt and its completion do not fit the context.
    """
    problems = {problem.id: problem.problem for problem in dataset.problems}
    checks = []
    for layout in layouts:
        check = check_condition(problems, condition, layout, model.tokenizer, instruction=instruction)
        check.refuse(model.name)
        if model.context_length is not None:
            check_context(check, model.context_length, max_gen_toks)
        checks.append(check)
    return checks
