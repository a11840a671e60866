"""The exceptions that mless raises on purpose.

Every message says what is wrong, the value and the place; what to do only where exactly one thing is. The command line
prints the message alone and exits with code 2, so a traceback always means a bug in mless itself.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

QUOTED_CHARACTERS = 500
"""Of another program's text in a message, at most."""


class HarnessError(Exception):
    """Base of every error that a user can cause and mend."""


class ConfigError(HarnessError):
    """A condition, a run config or a command-line value is not usable as written."""


class DataError(HarnessError):
    """A dataset file is missing, torn, or lacks a field."""


class PromptMismatchError(HarnessError):
    """A built prompt breaks a guarantee: filler length, problem token ids, or context length."""


class ModelError(HarnessError):
    """A model or tokenizer folder cannot be used for what was asked of it."""


class StartEndedError(ModelError):
    """A signal from outside ended the engine while it started."""


class MissingDependencyError(HarnessError):
    """An optional package is needed for this command and is not installed."""


class RunError(HarnessError):
    """A run folder is missing, incomplete, or was not written by mless."""


class ComparisonError(HarnessError):
    """Samples cannot be compared as asked: other problems, missing or doubled samples, or no baseline."""


class EngineError(HarnessError):
    """The engine died or refused a request; what was finished is in the journal."""


class JournalError(RunError):
    """A journal cannot be written, read or continued as asked."""


class RunInterrupted(HarnessError):
    """The run was stopped from outside; it can be continued."""


class GraderError(HarnessError):
    """The grader pool cannot start its workers, or give them a job."""


def list_near(got: str, names: Iterable[object], most: int = 6) -> str:
    """What a message suggests for a name that does not exist: the names most like it, and how many more there are.

    Where there are few, they are all listed, in their own order.
    """
    every = [str(name) for name in names]
    if len(every) <= most:
        return ", ".join(every)
    return list_first(difflib.get_close_matches(got, every, n=len(every), cutoff=0), most)


def list_first(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def explain_hub_error(name: str, error: BaseException) -> str:
    """One line that says why `name` could not be loaded from the hub, and what to do."""
    chain = [error]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    text = " ".join(f"{type(one).__name__}: {one}" for one in chain)
    if re.search(r"Gated|\b401\b|\b403\b|awaiting a review|restricted", text):
        return (
            f"The hub refuses {name} (401/403): it is gated, private or does not exist. Accept its licence on its "
            "page, then log in with `hf auth login` or set HF_TOKEN."
        )
    unreachable = "offline|connect|resol(ve|ution)|name or service|temporary failure|max retries|timed out|outgoing"
    if re.search(f"{unreachable}|LocalEntryNotFound", text, re.I):
        return (
            f"The hub could not be reached for {name}, and it is not in the local cache. On a connected machine run "
            "`mless fetch CONFIG` and carry the cache over with HF_HUB_OFFLINE=1."
        )
    said = " ".join(str(error).split()) or type(error).__name__
    if re.search(
        r"\b404\b|RepositoryNotFound|not a valid model identifier|HFValidationError", text
    ):
        said = "there is neither such a folder nor such a name on the hub."
    return f"{name} cannot be loaded: {said[:400]}"
