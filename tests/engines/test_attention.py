"""Attention that the engine records is that of Hugging Face."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import harness
from attention_probe.traces import AttentionTraces
from harness.engines.attention import Asked, means
from harness.errors import ConfigError
from harness.runs.folder import read_prompts
from tests.attention_probe.test_probe import column_means, eager
from tests.make import EXAMPLE

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, as vllm is imported

ASKED = ("--model", "smollm2", "--n", "2", "--layers", "1-3", "--conditions", "mless,mless-gap,random")


@pytest.fixture(scope="session")
def both(mless, smollm2, tmp_path_factory):
    """Traces of the same prompts, recorded by the engine and by Hugging Face."""
    folder = tmp_path_factory.mktemp("attention")
    for name, more in (("engine", ["--engine"]), ("probe", [])):
        done = mless("probe", str(EXAMPLE), *ASKED, *more, "-o", str(folder / name))
        assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.engine
@pytest.mark.slow
def test_traces_of_the_engine_are_those_of_the_probe(both, mless):
    with AttentionTraces.open(both / "engine") as ours, AttentionTraces.open(both / "probe") as theirs:
        assert len(ours) == len(theirs) == 2 * 4
        assert replace(ours.header, fingerprint={}) == replace(theirs.header, fingerprint={})
        for one in theirs:
            other = ours.get(one.problem_id, one.condition)
            for name in ("mean_all", "mean_common", "token_ids", "original_pos"):
                np.testing.assert_allclose(getattr(other, name), getattr(one, name), atol=1e-5)
            assert other.measures.keys() == one.measures.keys()
            for name, values in one.measures.items():
                np.testing.assert_allclose(other.measures[name], values, atol=1e-5, err_msg=name)
    done = mless("heads", str(both / "engine"), "--baseline", "random", "--condition", "mless", "--measure", "bias")
    assert done.returncode == 2 and "has no bias under" in done.stderr
    done = mless("figure", str(both / "engine"), "-o", str(both / "figures"))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, 64, 128])
def test_all_layers_of_forty_prompts_are_those_of_eager_attention(smollm2, budget, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    prompts = [np.array(row["ids"]) for row in read_some(40)]
    chunks = {} if budget is None else {"enable_chunked_prefill": True, "max_num_batched_tokens": budget}
    common = {"dtype": "float32", "max_model_len": 512, "enforce_eager": True, **chunks}
    given = tmp_path / "prompts.json"
    given.write_text(json.dumps([one.tolist() for one in prompts]))
    # in a process of its own, as a script has it
    subprocess.run([sys.executable, "-c", SCRIPT, str(given), json.dumps(common)], check=True)
    found = [part for _, part in sorted(np.load(given.with_suffix(".npz")).items(), key=lambda item: int(item[0]))]
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32, attn_implementation="eager").eval()
    for token_ids, ours in zip(prompts, found, strict=True):
        theirs = column_means(eager(model, token_ids)[0], np.arange(len(token_ids)))
        assert ours.shape == (30, 9, len(token_ids)) == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


SCRIPT = """
import json, sys
import numpy as np
import mless
if __name__ == "__main__":
    found = mless.attention("smollm2", json.load(open(sys.argv[1])), **json.loads(sys.argv[2]))
    np.savez(sys.argv[1].replace(".json", ".npz"), **{str(place): one for place, one in enumerate(found)})
"""


def read_some(count):
    """Prompts of the example with their tokens, of all lengths that it has."""
    from transformers import AutoTokenizer

    from harness.models import fetch_smollm2

    tokenizer = AutoTokenizer.from_pretrained(fetch_smollm2())
    rows = read_prompts(EXAMPLE)
    return [{"ids": tokenizer(row["prompt"])["input_ids"]} for row in rows[:: len(rows) // count][:count]]


def test_a_mean_is_over_the_later_queries_of_its_set_and_missing_without_one():
    asked = Asked(token_ids=[1, 2, 3], sets=[[True] * 3, [True, False, True], [False, True, True]])
    sums = np.ones((1, 3, 1, 3), np.float32)
    sums[..., -1] = 0
    assert json.dumps(means(sums, asked)[0, :, 0].tolist()) == "[[0.5, 1.0, NaN], [1.0, 1.0, NaN]]"


@pytest.mark.parametrize(
    ("layers", "message"), [([31], "is in Layer 31, and the model has 30"), ([0], "from 1, got 0")]
)
def test_layers_that_are_not_there_are_refused_before_the_model_is_loaded(smollm2, layers, message):
    with pytest.raises(ConfigError, match=message):
        harness.attention("smollm2", [[1, 2]], layers)


def test_what_an_engine_does_not_record_is_named(mless):
    done = mless("probe", str(EXAMPLE), *ASKED, "--engine", "--decompose", "-o", "unused.traces")
    assert done.returncode == 2 and "--engine records curves and masses of prompts" in done.stderr
