"""Reads a server's replies, in the forms that the vendors of OpenAI's API use."""

from collections.abc import Sequence
from typing import Any

from harness.engines.completions import Completion
from harness.errors import quote
from harness.finish_reasons import read_reason


def read_reply(status: int, body: Any, stop_strings: Sequence[str]) -> Completion | None:
    """The completion in a reply.

    Its text ends before the first stop string, because a server that did not get the stop strings
    (`omit`) goes on after them. Its finish reason is the first of these that applies:

    1. `stop` if the text was cut at a stop string.
    2. `error` if the reply reports an error.
    3. `no text` if it has neither text nor reasoning, cannot have ended at its first token or stop
       string, and the server names no other reason than a stop.
    4. The server's.

    An error that says that the prompt was filtered is an empty completion with this reason.

    Args:
        status: The status code.
        body: The reply's JSON, or its text.
        stop_strings: The stop strings.

    Returns:
        None if the reply is not from a model: an error of the server, or a gateway's page.
    """
    error_code = str(_find_value(body, "error", "code"))
    if read_reason(error_code) == "filtered":  # Azure answers a filtered prompt with an error
        return Completion(text="", finish_reason=error_code)
    if status != 200 or not isinstance(body, dict) or "choices" not in body:
        return None
    choice = _find_value(body, "choices", 0)
    message = _find_value(choice, "message")
    text = (
        _find_text(choice, "text")
        or _find_text(message, "content")
        or _find_text(message, "refusal")
    )
    reasoning = _find_text(message, "reasoning_content") or _find_text(message, "reasoning")
    token_count = _find_count(body, "completion_tokens")
    # A completion without a text is whole if its only token is the end token, or if its tokens are
    # a stop string, which a server leaves out of the text.
    may_be_whole = token_count == 1 or (token_count and stop_strings)
    lacks_expected_text = not (text or reasoning or may_be_whole)
    finish_reason = _find_finish_reason(body, lacks_expected_text)
    cut_text = text
    for stop_string in stop_strings:
        cut_text = cut_text.partition(stop_string)[0]
    return Completion(
        text=cut_text,
        reasoning=reasoning,
        completion_tokens=token_count,
        # a text up to a stop string is whole, whatever happened after it
        finish_reason=finish_reason if cut_text == text else "stop",
        # servers that do not count send 0
        prompt_tokens=_find_count(body, "prompt_tokens") or None,
    )


def _find_finish_reason(body: Any, lacks_expected_text: bool) -> str | None:
    """The finish reason of a reply: see points 2 to 4 of `read_reply`."""
    choice = _find_value(body, "choices", 0)
    if _find_value(body, "error") or _find_value(choice, "error"):
        return "error"
    server_reason = _find_value(choice, "finish_reason")
    reason = None if server_reason is None else str(server_reason)
    # any other reason, such as the limit of tokens, explains why there is no text
    if lacks_expected_text and read_reason(reason) in (None, "stop"):
        return "no text"
    return reason


def _find_value(value: Any, *keys: str | int) -> Any:
    """The value at a path of keys and indices; None if it is not there."""
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _find_count(body: Any, name: str) -> int | None:
    """A number of tokens as the server reports it; None if it reports none."""
    count = _find_value(body, "usage", name)
    return count if isinstance(count, int) else None


def _find_text(value: Any, name: str) -> str:
    """The text under this name; empty if there is none."""
    text = _find_value(value, name)
    return text if isinstance(text, str) else ""


def describe_error(body: Any) -> str:
    """A server's own message, on one line."""
    # a body may be {"error": {"message": TEXT}}, {"error": TEXT}, {"message": TEXT} or TEXT
    for key in ("error", "message"):
        body = _find_value(body, key) or body
    return quote(body).rstrip(". ")
