"""Reads a server's replies, in the forms that the vendors of OpenAI's API use."""

from collections.abc import Sequence
from typing import Any

from harness.engines.completions import Completion
from harness.errors import quote
from harness.finish_reasons import read_reason


def read_reply(status: int, body: Any, stop_strings: Sequence[str]) -> Completion | None:
    """The completion in a reply.

    A completion may be empty if it reached its limit, or ended at its first token or stop string;
    any other empty completion has the finish reason `no text`. The completion of a reply with an
    error has the finish reason `error`. Text after a stop string is cut off, as a server that was
    not told the stop strings (`omit`) goes on after them.

    Args:
        status: The status code.
        body: The reply's JSON, or its text.
        stop_strings: The stop strings.

    Returns:
        None if the reply is not from a model: an error of the server, or a gateway's page.
    """
    error_code = str(_find(body, "error", "code"))
    if read_reason(error_code) == "filtered":  # Azure refuses prompts with an error
        return Completion(text="", finish_reason=error_code)
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
    token_count = _find_count(body, "completion_tokens")
    may_be_whole = text or reasoning or token_count == 1 or (token_count and stop_strings)
    cut_text = text
    for stop_string in stop_strings:
        cut_text = cut_text.partition(stop_string)[0]
    finish_reason = _find_finish_reason(body, may_be_whole)
    return Completion(
        text=cut_text,
        reasoning=reasoning,
        completion_tokens=token_count,
        finish_reason=finish_reason if cut_text == text else "stop",
        # servers that do not count have 0
        prompt_tokens=_find_count(body, "prompt_tokens") or None,
    )


def _find_finish_reason(body: Any, may_be_whole: object) -> str | None:
    """The finish reason of a reply; `may_be_whole` is false if its completion lacks a text."""
    choice = _find(body, "choices", 0)
    if _find(body, "error") or _find(choice, "error"):
        return "error"
    server_reason = _find(choice, "finish_reason")
    reason = None if server_reason is None else str(server_reason)
    if not may_be_whole and read_reason(reason) in (None, "stop"):
        return "no text"
    return reason


def _find(value: Any, *keys: str | int) -> Any:
    """The value at a path of keys and indices; None if it is not there."""
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _find_count(body: Any, name: str) -> int | None:
    count = _find(body, "usage", name)
    return count if isinstance(count, int) else None


def _find_text(value: Any, name: str) -> str:
    text = _find(value, name)
    return text if isinstance(text, str) else ""


def describe_error(body: Any) -> str:
    """A server's own message, on one line."""
    # a body may be {"error": {"message": TEXT}}, {"error": TEXT}, {"message": TEXT} or TEXT
    for key in ("error", "message"):
        body = _find(body, key) or body
    return quote(body).rstrip(". ")
