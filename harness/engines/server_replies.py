"""Reads a server's replies, in the forms that the vendors of OpenAI's API use."""

from collections.abc import Sequence
from typing import Any

from harness.engines.completions import Completion
from harness.errors import quote
from harness.finish_reasons import read_reason


def read_reply(status: int, body: Any, stops: Sequence[str]) -> Completion | None:
    """The completion in a reply.

    A completion may be empty if it reached its limit, or ended at its first token or stop string;
    any other empty completion has the finish reason `no text`. The completion of a reply with an
    error has the finish reason `error`. Text after a stop string is cut off, as a server that was
    not told the stop strings (`omit`) goes on after them.

    Args:
        status: The status code.
        body: The reply's JSON, or its text.
        stops: The stop strings.

    Returns:
        None if the reply is not from a model: an error of the server, or a gateway's page.
    """
    code = str(_find(body, "error", "code"))
    if read_reason(code) == "filtered":  # Azure refuses prompts with an error
        return Completion(text="", finish_reason=code)
    if status != 200 or not isinstance(body, dict) or "choices" not in body:
        return None
    choice = _find(body, "choices", 0)
    message = _find(choice, "message")
    text = (
        _find_text(choice, "text")
        or _find_text(message, "content")
        or _find_text(message, "refusal")
    )
    reasoning = _find_text(message, "reasoning_content") or _find_text(message, "reasoning")
    tokens = _find_count(body, "completion_tokens")
    reason = _find(choice, "finish_reason")
    reason = None if reason is None else str(reason)
    may_be_empty = reasoning or tokens == 1 or (tokens and stops)
    if not text and not may_be_empty and read_reason(reason) in (None, "stop"):
        reason = "no text"
    if _find(body, "error") or _find(choice, "error"):
        reason = "error"
    for stop in stops:
        if stop in text:
            text, reason = text.partition(stop)[0], "stop"
    return Completion(
        text=text,
        reasoning=reasoning,
        completion_tokens=tokens,
        finish_reason=reason,
        # servers that do not count have 0
        prompt_tokens=_find_count(body, "prompt_tokens") or None,
    )


def _find(value: Any, *path: str | int) -> Any:
    """The value at a path of keys and indices; None if it is not there."""
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _find_count(body: Any, name: str) -> int | None:
    tokens = _find(body, "usage", name)
    return tokens if isinstance(tokens, int) else None


def _find_text(value: Any, name: str) -> str:
    text = _find(value, name)
    return text if isinstance(text, str) else ""


def describe_error(body: Any) -> str:
    """A server's own message, on one line."""
    # servers wrap the message as {"error": {"message": TEXT}}, or in one of the two alone
    for key in ("error", "message"):
        body = _find(body, key) or body
    return quote(body).rstrip(". ")
