import json
import shutil
from functools import cache

from typer.testing import CliRunner

from attention_probe.traces import AttentionTraces
from harness import cli
from harness.errors import HarnessError
from tests.conftest import session_fixture
from tests.make import TOY, write_traces
from tests.tiny_models import MODELS, build_whole


def save_model(folder, model_type, **changes):
    """Save a narrow model of an architecture with random weights and the toy model's tokenizer."""
    bundled = TOY / "model"
    vocabulary = json.loads((bundled / "config.json").read_text())["vocab_size"]
    changes |= {"vocab_size": vocabulary, "max_position_embeddings": 1024, "initializer_range": 0.1}
    build_whole(model_type, **changes).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(bundled / file, folder)
    return folder


@session_fixture
def tiny_model(tmp_path_factory):
    """A function from a study model's name to a folder: a narrow model with as many heads."""

    @cache
    def save(name):
        model_type, _, heads, kv_heads = MODELS["study"][name]
        shape = {"hidden_size": 4 * heads, "head_dim": 4}
        shape |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
        return save_model(tmp_path_factory.mktemp(model_type), model_type, **shape)

    return save


def store(path, traces, **header):
    """The traces, written to a folder and opened."""
    return AttentionTraces(write_traces(path, traces, **header))


def traces_under(traces, condition):
    return [trace for trace in traces if trace.condition == condition]


def bar_containers(axes):
    return [container for container in axes.containers if hasattr(container, "patches")]


def run_command(*arguments, stream="stdout"):
    """What a command of mless prints to one of its streams."""
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    if isinstance(result.exception, HarnessError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return getattr(result, stream)
