"""What `make demo` says of SmolLM2 is what plain Hugging Face finds on the same token ids."""

import pytest

import harness
from harness.experiment.tokenizer import hash_token_ids
from harness.runs.folder import read_prompts
from tests.conftest import needs_vllm
from tests.make import ROOT

ASKED = ["wo", "mless", "mless-first"]


def right_by_hugging_face(folder, model_folder):
    """Right answers of each condition, by greedy decoding of one prompt at a time in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    right = dict.fromkeys(ASKED, 0)
    for row in read_prompts(folder):
        if row["condition"] in right:
            ids = tokenizer(row["prompt"])["input_ids"]
            assert hash_token_ids(ids) == row["prompt_token_sha256"]
            written = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :]
            right[row["condition"]] += tokenizer.decode(written).split("\n")[0].strip() == row["doc"]["answer"]
    return right


@pytest.mark.slow
@needs_vllm
def test_right_answers_are_those_of_plain_hugging_face(mless, smollm2, tmp_path):
    mless("run", str(ROOT / "configs/runs/products.yaml"), "--limit", "12", "--quiet", "-o", str(tmp_path / "run"))
    frame = harness.load_run(tmp_path / "run")
    assert len(frame) == 7 * 3 * 12
    ours = frame.groupby("condition", observed=True)["correct"].sum()
    theirs = right_by_hugging_face(tmp_path / "run", smollm2)
    assert all(abs(ours[name] - theirs[name]) <= 1 for name in ASKED), (ours, theirs)
