import json
import os
import shutil
import subprocess
import sys
from functools import cache, partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import HealthCheck, settings

# other work on the machine must not fail a test, and examples may share a fixture
settings.register_profile(
    "mless", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("mless")
os.environ.setdefault("MATH500_PATH", str(Path(__file__).resolve().parent / "data/toy/demo.jsonl"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


PATIENCE = 1500
"""Seconds after which a command counts as hung. On a busy machine a minute of work took four."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Put the tests that start engines first, as they take longest."""
    items.sort(key=lambda item: item.get_closest_marker("engine") is None)


def pytest_make_parametrize_id(val):
    """The id of a path is the name of its file."""
    return val.stem if isinstance(val, Path) else None


def mark_slow(values, *, quick):
    """Parameters of which `make test` uses the quick ones alone; `make test-long` uses all."""
    return [
        value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]


if "PYTEST_XDIST_WORKER" in os.environ:
    # If other tests run too, an engine's two threads wait for each other most of the time.
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")

ENGINE_FILES = (
    "attention benchmarks engine engine_traces faults interventions smollm2 start_errors v2_hooks"
)
TOKENIZER_FILES = "conditions demonstrations checked_prompts token_roles tokenizer vllm"
"""Tests with all tokenizers, which take a process ten seconds to convert or train."""
GROUPS = {
    **dict.fromkeys(ENGINE_FILES.split(), "engines"),
    **dict.fromkeys(TOKENIZER_FILES.split(), "tokenizers"),
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Distribute files over processes. Files of a group run in one process and share fixtures."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return GROUPS.get(Path(file).stem.removeprefix("test_"), file)

    return GroupScheduling(config, log)


INSPECT = Path(sys.prefix) / "inspect"
"""Where `make test-long` installs inspect_ai."""
WITH_INSPECT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(INSPECT), *sys.path])}
needs_inspect = pytest.mark.skipif(
    not INSPECT.is_dir(), reason="`make test-long` installs inspect_ai"
)
session_fixture = pytest.fixture(scope="session")
ignore_warnings = pytest.mark.filterwarnings("ignore")
"""Those of vLLM and torch are not ours."""
needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")


def slow_engine(test):
    """Mark a test that starts the real engine and takes minutes."""
    return pytest.mark.engine(pytest.mark.slow(test))


LIMIT = 60
BUDGET = 48  # too few tokens for some solutions, so that truncation occurs
ENGINE_FLAGS = [
    f"--limit={LIMIT}",
    f"--set=max_gen_toks={BUDGET}",
    "--set=layouts=[raw, chat]",
]
"""Options of the run that most engine tests use: 480 samples, a few seconds of generation."""

GPU_SHARE = {"gpu_memory_utilization": 0.09, "kv_cache_memory_bytes": 2 * 2**30, "max_num_seqs": 64}
"""Engine arguments with which sixteen engines fit on one GPU: each takes about 4 GiB, that of the
study 7 GiB, and 9 percent has to be free as it starts.

With the cache's size given, vLLM does not derive it from free memory, which other engines change
meanwhile. Fewer sequences mean fewer CUDA graphs to capture.
"""


def gpu_share():
    """Arguments for an engine that shares a GPU with others; none where there is no GPU."""
    import torch

    return GPU_SHARE if torch.cuda.is_available() else {}


def gpu_share_options():
    """The same arguments as options of `mless run`."""
    return [f"--set=model.model_args.{name}={value}" for name, value in gpu_share().items()]


def report(measurement):
    """Print a number that a claim rests on. The table of `make test-gpu` repeats such lines."""
    print(f"\nmeasured: {measurement}", flush=True)


TOKENIZERS = yaml.safe_load((Path(__file__).parent / "data/tokenizers.yaml").read_text())
VOCABULARIES = TOKENIZERS["vocabularies"]


def corpus():
    """Training texts."""
    from harness.experiment.conditions import SENTENCES
    from harness.experiment.prompts.prompt import AS_PUBLISHED_INSTRUCTION, INSTRUCTION
    from tests.make import TOY_PROBLEMS

    texts = [f"{problem.problem}\n{problem.solution}\n\n" for problem in TOY_PROBLEMS] * 3
    texts += [INSTRUCTION + "\n\n", AS_PUBLISHED_INSTRUCTION, *SENTENCES[:8]] * 30
    return texts + TOKENIZERS["fillers"] * 300


def build_tokenizer(kind, *, bos):
    """A small real tokenizer of one of the kinds that are trained, with its chat template."""
    from tokenizers import Tokenizer, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    untrained, template = TOKENIZERS["trained"][kind].values()
    tokenizer = Tokenizer.from_str(json.dumps(untrained))
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=TOKENIZERS["special tokens"].split(),
        initial_alphabet=[] if kind == "sentencepiece" else pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A",
            pair="<s> $A $B",
            special_tokens=[("<s>", tokenizer.token_to_id("<s>"))],
        )
    elif template:
        template = template.replace("{{ bos_token }}", "")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>" if bos else None,
        eos_token="</s>",
        chat_template=template,
    )


def vocabulary_file(kind):
    """The file of a vocabulary. The test is skipped if a package that it needs is not installed."""
    for package in ("google.protobuf", "sentencepiece", "mistral_common"):
        reason = f"the real vocabularies need {package}, which is not installed; vLLM brings it"
        module = pytest.importorskip(package, reason=reason)
    return Path(module.__file__).parent / "data" / VOCABULARIES[kind]


@cache
def load_vocabulary(kind):
    """A real vocabulary as its model's fast tokenizer, with BOS; Tekken has a chat template."""
    file = vocabulary_file(kind)
    from transformers import LlamaTokenizer
    from transformers.integrations.mistral import convert_tekken_tokenizer

    if file.suffix == ".json":
        tokenizer = convert_tekken_tokenizer(str(file))
    else:
        with TemporaryDirectory() as folder:
            # Transformers reads no other name.
            shutil.copy(file, Path(folder) / "tokenizer.model")
            tokenizer = LlamaTokenizer.from_pretrained(folder)
    tokenizer.add_bos_token = True
    return tokenizer


@pytest.fixture(
    scope="session",
    params=mark_slow(
        [*product(TOKENIZERS["trained"], (False, True)), *VOCABULARIES, "smollm2"],
        quick=[("qwen2", False), ("sentencepiece", True), "tekken", "smollm2"],
    ),
    ids=lambda kind: f"real-{kind}" if isinstance(kind, str) else f"{kind[0]}-bos{kind[1]}",
)
def any_tokenizer(request):
    """Tokenizers of every kind, trained here with and without BOS, and three real ones."""
    if request.param == "smollm2":
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(request.getfixturevalue("smollm2"))
    if isinstance(request.param, str):
        return load_vocabulary(request.param)
    kind, bos = request.param
    return build_tokenizer(kind, bos=bos)


@session_fixture
def toy_tokenizer():
    from harness.experiment.prompts.tokenizer import load_tokenizer
    from tests.make import TOY_MODEL

    return load_tokenizer(TOY_MODEL)


def run_program(*command, **options):
    """Run a program to its end; return its exit code and what it printed."""
    return subprocess.run([*map(str, command)], capture_output=True, text=True, **options)


def succeeded(process):
    """A process that ended well; if it did not, the test fails with what it printed."""
    assert process.returncode == 0, process.stdout + process.stderr[-3000:]
    return process


def installed(name, *arguments, **environment):
    """Run an installed command as a user does."""
    program = Path(sys.executable).with_name(name)
    return run_program(program, *arguments, env={**os.environ, **environment}, timeout=PATIENCE)


@pytest.fixture
def command(capsys, monkeypatch):
    """`mless` in this process, without ten seconds of imports: its output and its exit code."""
    from harness import cli

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["mless", *map(str, arguments)])
        with pytest.raises(SystemExit) as error:
            cli.main()
        output = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, error.value.code or 0, output.out, output.err)

    return run


@pytest.fixture
def succeed(command):
    """What a command that must succeed prints to standard output."""

    def run(*arguments):
        return succeeded(command(*arguments)).stdout

    return run


@pytest.fixture
def make_run(tmp_path):
    """`write_run` into the folder `run` of the test."""
    from tests.make import write_run

    return partial(write_run, tmp_path / "run")


@session_fixture
def mless():
    return partial(installed, "mless")


@session_fixture
def lm_eval():
    return partial(installed, "lm_eval")


def run_python(code, *arguments, **options):
    """Run Python code in a process of its own, which must end well; return what it printed."""
    return succeeded(run_program(sys.executable, "-c", code, *arguments, **options)).stdout


def load_eager(name):
    """A model as Hugging Face computes it in float32, which also returns its attention."""
    import torch
    from transformers import AutoModelForCausalLM

    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    return AutoModelForCausalLM.from_pretrained(name, **options).eval()


@session_fixture
def smollm2():
    """The folder of SmolLM2 in the user's cache; it is downloaded once."""
    from harness.smollm2_model import fetch_smollm2

    return fetch_smollm2()


@session_fixture
def our_run(mless, tmp_path_factory):
    """The folder of a finished run of the toy model."""
    from tests.make import TOY_CONFIG

    folder = tmp_path_factory.mktemp("ours") / "run"
    options = [f"--output={folder}", *ENGINE_FLAGS, *gpu_share_options()]
    succeeded(mless("run", TOY_CONFIG, *options))
    return folder
