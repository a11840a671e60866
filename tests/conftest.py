import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

settings.register_profile("mless", deadline=None)  # other work on the machine must not fail a test
settings.load_profile("mless")
os.environ.setdefault("MATH500_PATH", str(Path(__file__).resolve().parent / "data/toy/demo.jsonl"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

PATIENCE = 1500
"""Seconds after which a command hangs: one that takes a minute took four on a crowded machine."""

SAMPLE = {
    "any_tokenizer": [("qwen2", False), ("sentencepiece", True), "tekken", "smollm2"],
    "model_type": ["qwen2", "gemma2", "gpt_oss"],
}
"""Of tests made for every tokenizer kind or many architectures, `make test` runs these; `make test-long` runs all."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests that start engines take longest: they come first. Of many variants only a sample is not slow."""
    items.sort(key=lambda item: item.get_closest_marker("engine") is None)
    made: dict[tuple[object, str], set[str]] = {}
    chosen = [
        (item, name) for item in items if hasattr(item, "callspec") for name in item.callspec.params
    ]
    for item, name in chosen:
        made.setdefault((item.function, name), set()).add(repr(item.callspec.params[name]))
    for item, name in chosen:
        if len(made[item.function, name]) > 4 and item.callspec.params[name] not in SAMPLE.get(
            name, [item.callspec.params[name]]
        ):
            item.add_marker("slow")


if "PYTEST_XDIST_WORKER" in os.environ:
    # beside other tests an engine's two threads wait for each other most of the time
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")

ENGINE_FILES = tuple(
    f"test_{name}.py"
    for name in "attention benchmarks engine faults interventions logits smollm2 start_errors".split()
)


TOKENIZER_FILES = tuple(
    f"test_{name}.py"
    for name in "conditions demonstrations token_checks token_roles tokenizer vllm".split()
)
"""Tests in all tokenizers. To convert or train them takes a process ten seconds."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """In several processes: all engine tests in one, where they share a run, those of all tokenizers in one too.

    The rest goes file by file to the others.
    """
    from xdist.scheduler import LoadScopeScheduling

    class EnginesTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            if Path(file).name in TOKENIZER_FILES:
                return "tokenizers"
            return "engines" if Path(file).name in ENGINE_FILES else file

    return EnginesTogether(config, log)


needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")

LIMIT = 60
BUDGET = 48  # short of some solutions, so that truncation occurs
ENGINE_FLAGS = [
    "--limit",
    str(LIMIT),
    "--set",
    f"max_gen_toks={BUDGET}",
    "--set",
    "layouts=[raw, chat]",
]
"""Of the one run that most engine tests look at: 480 samples, a few seconds of generation."""

GPU_SHARE = {"gpu_memory_utilization": 0.09, "kv_cache_memory_bytes": 2 * 2**30, "max_num_seqs": 64}
"""Engine arguments with which twelve engines fit on one GPU: each takes about 4 GiB, and 9 percent
has to be free as it starts.

With the cache's size given, vLLM does not derive it from free memory, which other engines change
meanwhile. Fewer sequences mean fewer CUDA graphs to capture.
"""


def gpu_share() -> dict[str, float]:
    """Arguments for an engine that shares a GPU with others; none where there is no GPU."""
    import torch

    return GPU_SHARE if torch.cuda.is_available() else {}


def report(measurement: str) -> None:
    """Print a number that a claim rests on. The table of `make test-gpu` repeats such lines."""
    print(f"\nmeasured: {measurement}", flush=True)


def gpu_share_options() -> list[str]:
    """The same arguments as options of `mless run`."""
    settings = [f"model.model_args.{name}={value}" for name, value in gpu_share().items()]
    return [word for setting in settings for word in ("--set", setting)]


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TRIMMED_WITH_BOS_AND_DATE = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m['role'] }}<|end|>\n\n"
    "{% if m['role'] == 'system' %}Today: {{ date_string }}\n\n{% endif %}{{ m['content'] | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
REFUSES_SYSTEM_AND_ASKS_CLOCK = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system role') }}"
    "{% endif %}<start_of_turn>{{ m['role'] }}\n{{ strftime_now('%d %b %Y') }}\n{{ m['content'] | trim }}"
    "<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
DROPS_SYSTEM = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST]\n{{ m['content'] }}[/INST]\n{% endif %}"
    "{% endfor %}"
)

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "qwen2": _WORDS + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _BLANKS,
    "llama3": _WORDS + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _BLANKS,
    "tekken": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _BLANKS,
    "gpt2": None,
    "sentencepiece": None,
}
TEMPLATES = {
    "qwen2": CHATML,
    "llama3": TRIMMED_WITH_BOS_AND_DATE,
    "tekken": DROPS_SYSTEM,
    "gpt2": None,
    "sentencepiece": REFUSES_SYSTEM_AND_ASKS_CLOCK,
}


def corpus() -> list[str]:
    """What the test tokenizers learn merges from; unspaced slashes are in it, so that merging is a real danger."""
    from harness.experiment.conditions import SENTENCES
    from harness.experiment.prompt import AS_PUBLISHED_INSTRUCTION, INSTRUCTION
    from tests.make import TOY_PROBLEMS

    texts = [f"{one.problem}\n{one.solution}\n\n" for one in TOY_PROBLEMS] * 3
    texts += [INSTRUCTION + "\n\n", AS_PUBLISHED_INSTRUCTION, *SENTENCES] * 30
    texts += [
        "/ / / / / /\n\n",
        "//////// // //\n",
        "he he he he he\n",
        "\\ \\ \\ ? ? ? ?\n",
        "}./ }.\n\n",
    ] * 300
    return texts


def build_tokenizer(kind: str, *, bos: bool):
    """A small real tokenizer of one of the kinds in PATTERNS, with that kind's chat template."""
    from tokenizers import (
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    special = [
        "<s>",
        "</s>",
        "<unk>",
        "<|im_start|>",
        "<|im_end|>",
        "<|start|>",
        "<|end|>",
        "<|eot|>",
    ]
    special += ["<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]"]
    if kind == "sentencepiece":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(
            Regex("▁+[^▁\n]*|\n+|[^▁\n]+"), behavior="isolated"
        )
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=special, show_progress=False)
    else:
        tokenizer = Tokenizer(models.BPE())
        byte_level = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=PATTERNS[kind] is None
        )
        pattern = PATTERNS[kind]
        tokenizer.pre_tokenizer = (
            byte_level
            if pattern is None
            else pre_tokenizers.Sequence(
                [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), byte_level]
            )
        )
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=1500,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    tokenizer.train_from_iterator(corpus(), trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A",
            pair="<s> $A $B",
            special_tokens=[("<s>", tokenizer.token_to_id("<s>"))],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>" if bos else None,
        eos_token="</s>",
        chat_template=(TEMPLATES[kind] or "").replace(
            "{{ bos_token }}", "{{ bos_token }}" if bos else ""
        )
        or None,
    )


VOCABULARIES = {"tekken": "tekken_240911.json", "mistral-7b": "tokenizer.model.v1"}
"""Real vocabularies of 131,072 and 32,000 tokens (BPE over bytes, SentencePiece): data of mistral_common."""


def vocabulary_file(kind: str) -> Path:
    """Where mistral_common keeps it; skips the test where that, or what reads the file, is not installed."""
    for package in ("google.protobuf", "sentencepiece", "mistral_common"):
        reason = f"the real vocabularies need {package}, which is not installed; vLLM brings it"
        found = pytest.importorskip(package, reason=reason)
    return Path(found.__file__).parent / "data" / VOCABULARIES[kind]


@cache
def load_vocabulary(kind: str):
    """One of VOCABULARIES as the fast tokenizer that its model has, with BOS; Tekken has a chat template."""
    file = vocabulary_file(kind)
    from transformers import LlamaTokenizer
    from transformers.integrations.mistral import convert_tekken_tokenizer

    if file.suffix == ".json":
        tokenizer = convert_tekken_tokenizer(str(file))
    else:
        with TemporaryDirectory() as folder:
            shutil.copy(
                file, Path(folder) / "tokenizer.model"
            )  # the only name that transformers reads
            tokenizer = LlamaTokenizer.from_pretrained(folder)
    tokenizer.add_bos_token = True
    return tokenizer


@pytest.fixture(
    scope="session",
    params=[*((k, b) for k in PATTERNS for b in (False, True)), *VOCABULARIES, "smollm2"],
    ids=lambda p: f"real-{p}" if isinstance(p, str) else f"{p[0]}-bos{p[1]}",
)
def any_tokenizer(request: pytest.FixtureRequest):
    """Each tokenizer kind, with and without BOS, trained here; then real vocabularies, and a real model's tokenizer."""
    if request.param == "smollm2":
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(request.getfixturevalue("smollm2"))
    if isinstance(request.param, str):
        return load_vocabulary(request.param)
    kind, bos = request.param
    return build_tokenizer(kind, bos=bos)


@pytest.fixture(scope="session")
def toy_tokenizer():
    from harness.experiment.tokenizer import load_tokenizer
    from tests.make import TOY_MODEL

    return load_tokenizer(TOY_MODEL)


def installed(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One of the installed commands, as a user runs it."""
    command = [str(Path(sys.executable).with_name(name)), *arguments]
    own = {**os.environ, **environment}
    return subprocess.run(
        command, capture_output=True, text=True, env=own, timeout=PATIENCE, check=False
    )


@pytest.fixture(scope="session")
def mless() -> Callable[..., subprocess.CompletedProcess[str]]:
    return partial(installed, "mless")


@pytest.fixture(scope="session")
def lm_eval() -> Callable[..., subprocess.CompletedProcess[str]]:
    return partial(installed, "lm_eval")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2's folder: in the user's cache, fetched once."""
    from harness.smollm2_model import fetch_smollm2

    return fetch_smollm2()


NVIDIA_SMI = """#!/bin/sh
case "$1" in
*compute-apps*) printf '%s' "$PROCESSES" ;;
*index,uuid*) printf '0, GPU-aa11\n1, GPU-bb22\n' ;;
*) printf '%s' "$GPUS" ;;
esac
"""


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """A program of that name which prints what the real one would on a machine with GPUs."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GPUS", "NVIDIA H100 80GB HBM3, 550.54.15, 81559, 12390\n")

    def holding(*lines):
        monkeypatch.setenv("PROCESSES", "".join(f"{line}\n" for line in lines))

    holding()
    return holding


@pytest.fixture(scope="session")
def our_run(mless, tmp_path_factory):
    """A finished run of the toy model: its folder, and what the command printed."""
    from tests.make import TOY_CONFIG

    folder = tmp_path_factory.mktemp("ours") / "run"
    done = mless("run", TOY_CONFIG, "--output", str(folder), *ENGINE_FLAGS, *gpu_share_options())
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, done.stdout
