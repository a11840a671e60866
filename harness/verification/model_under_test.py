"""The model, the data and the changes of run configs that a verification uses on this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from harness import resources
from harness.errors import DataError
from harness.experiment.problems import load_math500
from harness.runs import receipts
from harness.verification.processes import run_mless, say
from harness.verification.record import Settings

PUBLISHED = "qwen2.5-math-1.5b-published"
"""The config of the study's own prompts."""
SHAPE = "qwen2.5-math-1.5b"
"""The architecture that random weights are given."""
SEED = 0
RANDOM_TOKENS = 128
"""Length of a completion with random weights, which never end one. Longer ones would not fit into 10 MB."""
FIRST_REPLAYING = Version("0.29")
"""The first vLLM that can be made to write given tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """On what the steps work.

    Attributes:
        folder: The verification's folder, in which every step has one of its own name.
        settings: What is verified.
        model: Model folder or hub name; None for the configs' own.
        device: `cpu`, `cuda`, ...
        replays: Whether this vLLM can write the reference solutions instead of the model's own completions.
        data: `demo` for the bundled problems; None for MATH-500.
    """

    folder: Path
    settings: Settings
    model: str | None
    device: str | None
    replays: bool = False
    data: str | None = None

    def run(self, name: str, folder: Path, changes: Sequence[str] = (), limit: int | None = None) -> None:
        """Run a shipped config by `mless run` into `folder`/run, with these changes."""
        limit = limit or self.settings.limit
        run_mless(self.config(name), folder / "run", self.log(folder.name), changes, limit)

    def config(self, name: str) -> Path:
        """A shipped run config."""
        return resources.folder("configs") / "runs" / f"{name}.yaml"

    def changes(self, *, replay: bool = False) -> list[str]:
        """The changes of a run config of the model. `replay`: the model's own completions are not what is measured."""
        changed = [] if self.model is None else [f"model.arguments.pretrained={self.model}"]
        if self.data:
            changed.append(f"dataset={self.data}")
        if self.device == "cpu":
            changed.append("model.arguments.enforce_eager=true")
        if self.settings.random_weights:
            replaying = replay and self.replays
            changed.append("model.arguments.replay_solutions=true" if replaying else f"max_gen_toks={RANDOM_TOKENS}")
        return [*changed, *self.settings.overrides]

    def log(self, name: str) -> Path:
        """Where the output of a process goes. It is no part of what is checked."""
        return self.folder / "logs" / f"{name}.log"

    def at_most(self, problems: int) -> int:
        """This number of problems, or the settings' limit if that is lower."""
        return min(problems, self.settings.limit or problems)


def open_bench(folder: Path, settings: Settings, device: str | None) -> Bench:
    """Find out what this machine allows. A model with random weights is written if it is not there yet."""
    model = settings.model
    if settings.random_weights:
        say("writing a model with random weights, about a minute")
        model = str(write_random_model(receipts.cache_folder() / "random-weights" / SHAPE))
    data = "demo" if model == "demo" else None
    if data is None:
        try:
            load_math500()
        except DataError as error:
            say(f"the bundled problems take the place of MATH-500. {error}")
            data = "demo"
    version = Version(receipts.engine_identity("vllm", {}).version or "0")
    replays = device == "cuda" and version >= FIRST_REPLAYING
    return Bench(folder=folder, settings=settings, model=model, device=device, replays=replays, data=data)


def write_random_model(folder: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """Write a model of a real model's exact shape with random weights, for a machine without the hub.

    An existing folder is left as it is. The tokenizer is the bundled one with a word for every further id of the
    vocabulary. Otherwise most of what random weights generate would decode to no text, and the journal and the graders
    would have nothing to do.

    Args:
        folder: Where; it appears when the model is whole.
        changes: Other values of the shape, such as fewer layers.
    """
    if folder.is_dir():
        return folder
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = resources.folder("configs") / "architectures" / f"{SHAPE}.yaml"
    facts: dict[str, Any] = yaml.safe_load(shape.read_text(encoding="utf-8"))["config"] | dict(changes or {})
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**facts), dtype=torch.bfloat16)
    model.save_pretrained(part)
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(resources.demo_model() / name, part / name)
    tokenizer = Tokenizer.from_file(str(resources.demo_model() / "tokenizer.json"))
    tokenizer.add_tokens([f" w{number}" for number in range(tokenizer.get_vocab_size(), facts["vocab_size"])])
    tokenizer.save(str(part / "tokenizer.json"))
    ends = {"bos_token_id": facts["bos_token_id"], "eos_token_id": facts["eos_token_id"], "do_sample": False}
    (part / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    part.replace(folder)
    return folder
