"""The exceptions that mless raises on purpose, and the parts of its messages.

A message says what is wrong, with the value and its location. It says what to do only if there is
exactly one remedy. The command line prints the message alone and exits with code 2, so a traceback
always means a bug in mless itself.
"""

import difflib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

MOST_QUOTED_CHARACTERS = 500
"""Maximum length of another program's text in a message."""
TABLE_HINT = "A table of the columns item, condition and score is read as it is."
"""What to give instead of a log or table that cannot be read."""


class HarnessError(Exception):
    """Base of all errors that a user can cause and fix."""


class ConfigError(HarnessError, ValueError):
    """A condition, a run config or a command-line value is not usable as written.

    It is a ValueError, so that pydantic adds the key when a validator raises it.
    """


class DataError(HarnessError):
    """A dataset file is missing, torn, or lacks a field."""


class PromptMismatchError(HarnessError):
    """A built prompt breaks a guarantee: filler length, problem token ids, or context length."""


class ModelError(HarnessError):
    """A model or tokenizer folder cannot be used as requested."""


class RunError(HarnessError):
    """A run folder is missing, incomplete, or was not written by mless."""


class ComparisonError(HarnessError):
    """Samples cannot be compared: other problems, missing or double samples, or no baseline."""


class EngineError(HarnessError):
    """The engine died or refused a request; what was finished is in the journal."""


class JournalError(RunError):
    """A journal cannot be written, read or continued."""


class RunInterrupted(HarnessError):
    """The run was stopped from outside; it can be continued."""


class GraderError(HarnessError):
    """The grader pool cannot start its workers, or give them a job."""


def print_message(message: str) -> None:
    """Print a message for the user on standard error."""
    print(f"mless: {message}", file=sys.stderr, flush=True)


def quote(message: object) -> str:
    """The beginning of another program's message, on one line."""
    return " ".join(str(message).split())[:MOST_QUOTED_CHARACTERS]


def quote_error(error: BaseException) -> str:
    """The type and the message of another program's error, on one line."""
    return quote(f"{type(error).__name__}: {error}")


def list_near(invalid_name: str, names: Iterable[object], limit: int = 6) -> str:
    """The valid names that a message suggests: similar ones first, and the number of the others."""
    valid_names = list(map(str, names))
    similar_names = difflib.get_close_matches(invalid_name, valid_names, n=len(valid_names))
    other_names = [name for name in valid_names if name not in similar_names]
    return list_first([*similar_names, *other_names], limit)


def name_similar_files(path: Path) -> str:
    """A sentence about names like that of a missing file; empty if there are none."""
    if path.exists() or not path.parent.is_dir():
        return ""
    similar_names = difflib.get_close_matches(path.name, os.listdir(path.parent))
    return f" Near it: {', '.join(similar_names)}." if similar_names else ""


def list_first(names: Sequence[str], limit: int = 3) -> str:
    """The first names, and the number of the others."""
    listed_names = ", ".join(names[:limit])
    return f"{listed_names} and {len(names) - limit} more" if len(names) > limit else listed_names


def explain_hub_error(hub_name: str, error: BaseException) -> str:
    """One line that says why `hub_name` could not be loaded from the hub, and what to do."""
    error_chain = [error]
    # libraries wrap the error of the network several times
    while cause := error_chain[-1].__cause__ or error_chain[-1].__context__:
        error_chain.append(cause)
    chain_text = " ".join(f"{type(cause).__name__}: {cause}" for cause in error_chain)
    if re.search(r"Gated|\b401\b|\b403\b|awaiting a review|restricted", chain_text):
        return (
            f"The hub refuses {hub_name} (401/403): it is gated, private or does not exist. Accept "
            "its licence on its page, then log in with `hf auth login` or set HF_TOKEN."
        )
    if re.search(
        "offline|connect|resol(ve|ution)|name or service|temporary failure|max retries|timed out"
        "|outgoing|LocalEntryNotFound",
        chain_text,
        re.I,
    ):
        return (
            f"The hub could not be reached for {hub_name}, and it is not in the local cache. On a "
            f"connected machine run `hf download {hub_name}` and copy the cache here; then set "
            "HF_HUB_OFFLINE=1."
        )
    reason = quote(error) or type(error).__name__
    if re.search(
        r"\b404\b|RepositoryNotFound|not a valid model identifier|HFValidationError", chain_text
    ):
        reason = "there is neither such a folder nor such a name on the hub."
    return f"{hub_name} cannot be loaded: {reason}"
