"""Reads a server's replies, in the forms that the vendors of OpenAI's API use."""

from collections.abc import Sequence
from typing import Any

from harness.engines.completions import Completion
from harness.errors import quote
from harness.finish_reasons import read_reason


def read_reply(status: int, body: Any, stop_strings: Sequence[str]) -> Completion | None:
    """The completion in a reply.

    Text after a stop string is cut off, because a server that did not get the stop strings (`omit`)
    goes on after them; the finish reason then is `stop`. Else the completion of a reply with an
    error has the finish reason `error`, and one without a text has `no text`, unless it reached its
    limit, or ended at its first token or stop string.

    Args:
        status: The status code.
        body: The reply's JSON, or its text.
        stop_strings: The stop strings.

    Returns:
        None if the reply is not from a model: an error of the server, or a gateway's page.
    """
    error_code = str(_find(body, "error", "code"))
    if read_reason(error_code) == "filtered":  # Azure answers a filtered prompt with an error
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
    # a completion without a text may have ended at its first token, or at its first stop string
    ended_at_once = token_count == 1 or (token_count and stop_strings)
    cut_text = text
    for stop_string in stop_strings:
        cut_text = cut_text.partition(stop_string)[0]
    finish_reason = _find_finish_reason(body, text or reasoning or ended_at_once)
    return Completion(
        text=cut_text,
        reasoning=reasoning,
        completion_tokens=token_count,
        # a text up to a stop string is whole, whatever happened after it
        finish_reason=finish_reason if cut_text == text else "stop",
        # servers that do not count send 0
        prompt_tokens=_find_count(body, "prompt_tokens") or None,
    )


def _find_finish_reason(body: Any, may_have_ended: object) -> str | None:
    """The finish reason of a reply; if `may_have_ended` is false, the model wrote nothing."""
    choice = _find(body, "choices", 0)
    if _find(body, "error") or _find(choice, "error"):
        return "error"
    server_reason = _find(choice, "finish_reason")
    reason = None if server_reason is None else str(server_reason)
    if not may_have_ended and read_reason(reason) in (None, "stop"):
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
    """A number of tokens as the server reports it; None if it reports none."""
    count = _find(body, "usage", name)
    return count if isinstance(count, int) else None


def _find_text(value: Any, name: str) -> str:
    """The text under this name; empty if there is none."""
    text = _find(value, name)
    return text if isinstance(text, str) else ""


def describe_error(body: Any) -> str:
    """A server's own message, on one line."""
    # a body may be {"error": {"message": TEXT}}, {"error": TEXT}, {"message": TEXT} or TEXT
    for key in ("error", "message"):
        body = _find(body, key) or body
    return quote(body).rstrip(". ")
