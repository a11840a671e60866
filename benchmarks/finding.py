"""Measure the attention of the question's tokens and the accuracy: the numbers of docs/finding.md.

    python -m benchmarks.finding results/example [--small]

For each prompt (each problem with each draw of examples, in each of `CONDITIONS`) it measures the
attention of the last 40 tokens: the share, mean over heads, that goes to the first token and to the
filler, in Layer 1 and in Layers 4 to 10. SmolLM2 runs in float32 with the attention of Hugging Face
(`eager`). With --small few prompts are measured.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas
import torch
from scipy.stats import rankdata, spearmanr
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.runs import make_parser, say
from harness.runs.prompt_sources import AnsweredPrompt
from harness.runs.read_runs import Run
from harness.smollm2_model import fetch_smollm2

QUERIES, BATCH, RESAMPLES = 40, 16, 400
SMALL_STEP = 60
"""With --small every 60th prompt is measured. A problem has 39 prompts, so all conditions occur."""
LAYERS = 10
FILLERS = ("mless", "mful", "dots", "random", "ids-1")
CONDITIONS = ["wo", *FILLERS, *(f"{filler}-first" for filler in FILLERS)]
CONDITIONS += ["slash-220-between", "slash-220-before-system"]
EARLY = slice(3, LAYERS)
"""Layers 4 to 10 as a slice of layers that are counted from 0."""


def filler_characters(prompt: AnsweredPrompt) -> tuple[int, int]:
    """Find the start and end of the filler in a raw prompt, (-1, -1) without a filler."""
    start = 0
    for segment in prompt.requested.segments:
        if segment.role == "filler":
            return start, start + len(segment.text)
        start += len(segment.text)
    return -1, -1


@torch.inference_mode()
def measure(prompts: list[AnsweredPrompt]) -> pandas.DataFrame:
    """Measure whether the first sample is right, and the shares of attention: a row per prompt."""
    folder = str(fetch_smollm2())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model.model.layers = model.model.layers[:LAYERS]
    by_length = defaultdict(list)  # prompts of equal length make a batch without padding
    for prompt in prompts:
        encoding = tokenizer(prompt.prompt, return_offsets_mapping=True)
        start, end = filler_characters(prompt)
        is_filler = [start <= a < b <= end for a, b in encoding["offset_mapping"]]
        by_length[len(is_filler)].append((prompt, encoding["input_ids"], is_filler))
    rows = []
    for encoded in by_length.values():
        for start in range(0, len(encoded), BATCH):
            batch, token_ids, masks = zip(*encoded[start : start + BATCH], strict=True)
            output = model.model(torch.tensor(token_ids), output_attentions=True, use_cache=False)
            layers = [layer[:, :, -QUERIES:].mean((1, 2)) for layer in output.attentions]
            attention = torch.stack(layers, dim=1).numpy()  # [prompt, layer, key]
            for prompt, shares, mask in zip(batch, attention, np.array(masks), strict=True):
                first, filler = shares[:, 0], shares[:, mask].sum(axis=1)
                row = {
                    "condition": prompt.condition,
                    "cluster": prompt.doc["cluster"],
                    "right": prompt.verdicts[0] == "correct",
                    "first": first[EARLY].mean(),
                    "filler": filler[EARLY].mean(),
                    "layer 1": filler[0],
                }
                rows.append(row)
            say(f"{len(rows)} of {len(prompts)} prompts")
    return pandas.DataFrame(rows)


def compare_right_and_wrong(shares: pandas.DataFrame) -> tuple[float, float, float]:
    """Estimate how often a right answer has more attention on the first token than a wrong answer.

    Pairs of answers are compared within conditions. Without a relation the share of such pairs is
    one half. The interval resamples clusters of problems.
    """

    def share_of_pairs(frame: pandas.DataFrame) -> float:
        wins = pairs = 0.0
        for _, condition in frame.groupby("condition"):
            right, wrong = condition["right"].sum(), (~condition["right"]).sum()
            ranks = rankdata(condition["first"])[condition["right"]]
            wins += ranks.sum() - right * (right + 1) / 2
            pairs += right * wrong
        return wins / pairs

    names = shares["cluster"].unique()
    clusters = dict(iter(shares.groupby("cluster")))
    rng = np.random.default_rng(1)
    estimates = []
    for _ in range(RESAMPLES):
        resample = [clusters[name] for name in rng.choice(names, len(names))]
        estimates.append(share_of_pairs(pandas.concat(resample)))
    return share_of_pairs(shares), *np.percentile(estimates, [2.5, 97.5])


def main() -> None:
    """Measure a run, and print a table and two numbers."""
    parser = make_parser(__doc__)
    parser.add_argument("run", type=Path)
    arguments = parser.parse_args()
    prompts = [
        prompt for prompt in Run.load(arguments.run).prompts if prompt.condition in CONDITIONS
    ]
    shares = measure(prompts[:: SMALL_STEP if arguments.small else 1])
    means = shares.groupby("condition", sort=False).agg(
        {"right": "mean", "first": "mean", "filler": ["mean", "min", "max"], "layer 1": "mean"}
    )
    print(means.round(2).to_string())
    correlation = spearmanr(means["right", "mean"], means["first", "mean"])[0]
    share, low, high = compare_right_and_wrong(shares)
    print(
        f"Across {len(means)} conditions the rank correlation of accuracy and `first` is "
        f"{correlation:.2f}.\nWithin conditions the right answer has the larger `first` in a share "
        f"{share:.3f} [{low:.3f}, {high:.3f}] of pairs."
    )


if __name__ == "__main__":
    main()
