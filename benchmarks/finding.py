"""Where the question's tokens look, and whether accuracy follows: the numbers of docs/finding.md.

    python -m benchmarks.finding results/example [--small]

Of each prompt (each problem with each draw of examples, under each of `CONDITIONS`): the share of the attention of
the last 40 tokens, mean over heads, that goes to the first token and to the filler, in Layer 1 and in Layers 4 to 10.
SmolLM2's attention is Hugging Face's own (`eager`), in float32. With --small few prompts are measured.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas
import torch
from scipy.stats import rankdata, spearmanr
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.runs import say
from harness.runs.answered_prompts import AnsweredPrompt
from harness.runs.read_runs import Run
from harness.smollm2_model import fetch_smollm2

QUERIES, BATCH, RESAMPLES = 40, 16, 400
SMALL_STEP = 60
"""With --small only each 60th prompt is measured. A problem has 39 prompts, so all conditions occur."""
DEEPEST = 10
CONDITIONS = [
    "wo",
    *(
        f"{name}{place}"
        for name in ("mless", "mful", "dots", "random", "ids-1")
        for place in ("", "-first")
    ),
]
CONDITIONS += ["slash-220-between", "slash-220-before-system"]
EARLY = slice(3, DEEPEST)
"""Layers 4 to 10, counted from 0."""


def filler_characters(prompt: AnsweredPrompt) -> tuple[int, int]:
    """Where the filler's text begins and ends in a raw prompt; nowhere without one."""
    begun = 0
    for segment in prompt.requested.segments:
        if segment.role == "filler":
            return begun, begun + len(segment.text)
        begun += len(segment.text)
    return -1, -1


@torch.inference_mode()
def measure(prompts: list[AnsweredPrompt]) -> pandas.DataFrame:
    """One row a prompt: whether the first sample is right, and the shares of attention."""
    folder = str(fetch_smollm2())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model.model.layers = model.model.layers[:DEEPEST]
    by_length = defaultdict(list)  # prompts of one length make a batch without padding
    for prompt in prompts:
        coded = tokenizer(prompt.prompt, return_offsets_mapping=True)
        begin, end = filler_characters(prompt)
        inside = [begin <= a < b <= end for a, b in coded["offset_mapping"]]
        by_length[len(inside)].append((prompt, coded["input_ids"], inside))
    rows = []
    for same in by_length.values():
        for start in range(0, len(same), BATCH):
            chosen, ids, inside = zip(*same[start : start + BATCH], strict=True)
            seen = model.model(
                torch.tensor(ids), output_attentions=True, use_cache=False
            ).attentions
            looks = torch.stack(
                [layer[:, :, -QUERIES:].mean((1, 2)) for layer in seen]
            ).numpy()  # [layer, prompt, key]
            for prompt, looked, mask in zip(
                chosen, looks.swapaxes(0, 1), np.array(inside), strict=True
            ):
                first, filler = looked[:, 0], looked[:, mask].sum(axis=1)
                rows.append(
                    {
                        "condition": prompt.condition,
                        "cluster": prompt.doc["cluster"],
                        "right": prompt.verdicts[0] == "correct",
                        "first": first[EARLY].mean(),
                        "filler": filler[EARLY].mean(),
                        "layer 1": filler[0],
                    }
                )
            say(f"{len(rows)} of {len(prompts)} prompts")
    return pandas.DataFrame(rows)


def follow(shares: pandas.DataFrame) -> tuple[float, float, float]:
    """How often a right answer has more attention on the first token than a wrong one, within conditions.

    Half of the pairs without a connection. The interval resamples clusters of problems.
    """

    def once(frame: pandas.DataFrame) -> float:
        wins = pairs = 0.0
        for _, one in frame.groupby("condition"):
            up, down = one["right"].sum(), (~one["right"]).sum()
            wins += rankdata(one["first"])[one["right"]].sum() - up * (up + 1) / 2
            pairs += up * down
        return wins / pairs

    names = shares["cluster"].unique()
    parts = dict(iter(shares.groupby("cluster")))
    draw = np.random.default_rng(1)
    drawn = [
        once(pandas.concat([parts[one] for one in draw.choice(names, len(names))]))
        for _ in range(RESAMPLES)
    ]
    return once(shares), *np.percentile(drawn, [2.5, 97.5])


def main() -> None:
    """Measure the run that is named, and print a table and two numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--small", action="store_true", help="few prompts, to see that it works")
    arguments = parser.parse_args()
    prompts = [
        prompt for prompt in Run.load(arguments.run).prompts if prompt.condition in CONDITIONS
    ]
    shares = measure(prompts[:: SMALL_STEP if arguments.small else 1])
    means = shares.groupby("condition", sort=False).agg(
        {"right": "mean", "first": "mean", "filler": ["mean", "min", "max"], "layer 1": "mean"}
    )
    print(means.round(2).to_string())
    accuracy, first = means["right", "mean"], means["first", "mean"]
    print(
        f"across {len(means)} conditions: rank correlation of accuracy and first {spearmanr(accuracy, first)[0]:.2f}"
    )
    print(
        "within conditions: a right answer has the larger first in {:.3f} [{:.3f}, {:.3f}]".format(
            *follow(shares)
        )
    )


if __name__ == "__main__":
    main()
