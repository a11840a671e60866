"""Every number of the main table again, from the raw journal, with nothing of ours but the files."""

import json
import math
import random
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binomtest

from tests.make import GREEDY_RUN, REGISTERED, write_run


def lines(folder, name):
    return [
        json.loads(line)
        for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def sign_flips(changes):
    """Share of all sign patterns with a sum as far from 0 as the one seen, counted in whole numbers."""
    ways = Counter({0: 1})
    for size in map(abs, changes):
        spread = Counter()
        for total, count in ways.items():
            spread[total + size] += count
            spread[total - size] += count
        ways = spread
    far = sum(count for total, count in ways.items() if abs(total) >= abs(sum(changes)))
    return float(Fraction(far, 2 ** len(changes)))


def interval(changes, k):
    """Every mean that sign flips keep at 5 percent, found by halving; the patterns are not the package's own."""
    values = np.array(changes) / k
    signs = np.random.default_rng(7).choice([-1, 1], size=(20_000, len(values)))
    sums, counts = signs @ values, signs.sum(axis=1)

    def is_kept(mean):
        far = abs(values.sum() - mean * len(values))
        return (abs(sums - mean * counts) >= far - 1e-9).mean() >= 0.05

    ends = []
    for outside in (-1.0, 1.0):
        inside = values.mean()
        for _ in range(40):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if is_kept(middle) else (inside, middle)
        ends.append(inside)
    if np.count_nonzero(values) < 6:
        missed = [
            binomtest(int(changed), len(values)).proportion_ci(method="exact").high
            - changed / len(values)
            for changed in ((values < 0).sum(), (values > 0).sum())
        ]
        ends = [min(ends[0], values.mean() - missed[0]), max(ends[1], values.mean() + missed[1])]
    return [100 * end for end in ends]


def compared(old, new, k):
    """Difference, flips, p and interval of right samples by problem."""
    changes = [new[problem] - old[problem] for problem in old]
    gained = sum((k - old[i]) * new[i] for i in old) / k**2
    lost = sum(old[i] * (k - new[i]) for i in old) / k**2
    numbers = {"wrong_to_right": gained, "right_to_wrong": lost, "p": sign_flips(changes)}
    return {"difference": 100 * sum(changes) / len(changes) / k, **numbers}, interval(changes, k)


@pytest.fixture(params=[1, 5])
def folder(request, tmp_path):
    """A greedy run of the toy model, and one of five samples a problem, right by chance."""
    if request.param == 1:
        return GREEDY_RUN
    draw = random.Random(3)

    def answer(_, target):
        return f"\\boxed{{{target if draw.random() < 0.8 else -1234}}}", "stop"

    several = {"repeats": 5, "gen_kwargs": {"temperature": 0.5}, "replicates": 2, **REGISTERED}
    return write_run(
        tmp_path / "run", answer, limit=200, conditions=["wo", "mless", "mful", "random"], **several
    )


def test_the_table_is_what_the_raw_files_say(folder, mless):
    verdicts = {line["key"]: line for line in lines(folder, "scores")[1:]}
    right: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    texts = {}
    k = 0
    for line in lines(folder, "journal")[1:]:
        if "task" in line:
            arm = line["task"].removeprefix("demo_") + " again" * line["replicate"]
            right[arm][line["problem_id"]] += verdicts[line["key"]]["verdict"] == "correct"
            k = max(k, line["sample_index"] + 1)
            texts[line["task"], (line["problem_id"], line["sample_index"], line["replicate"])] = (
                line["completion"]
            )
    table = json.loads(mless("table", str(folder), "--format", "json").stdout)
    shown = {row["condition"]: row for row in table["rows"]}
    old = right["wo"]
    n = len(old)
    header = lines(folder, "journal")[0]
    pairs = {
        new if base == "wo" else f"{new} - {base}": (new, base) for new, base in header["contrasts"]
    }
    primary = header["primary"][0]
    found = {name: compared(right[base], right[new], k) for name, (new, base) in pairs.items()}
    p = {name: found[name][0]["p"] for name in pairs}
    others = sorted(pairs.keys() - {primary}, key=p.get)
    adjusted, gate = {primary: p[primary]}, p[primary]
    for place, name in enumerate(others):
        gate = adjusted[name] = max(gate, min(1, (len(others) - place) * p[name]))
    for name in pairs:
        numbers, ends = found[name]
        numbers["p_adjusted"] = adjusted[name]
        assert {key: shown[name][key] for key in numbers} == pytest.approx(
            numbers, rel=1e-7, abs=1e-7
        )
        slack = 0.03 * (ends[1] - ends[0])  # both intervals are of random patterns
        assert [shown[name]["low"], shown[name]["high"]] == pytest.approx(ends, abs=slack)
    for name, row in shown.items():
        shares = [right[name.partition(" - ")[0]][problem] / k for problem in old]
        mean = sum(shares) / n
        spread = math.sqrt(sum((share - mean) ** 2 for share in shares) / (n - 1) / n)
        assert (row["problems"], row["repeats"]) == (n, k)
        assert (row["accuracy"], row["standard_error"]) == pytest.approx((100 * mean, 100 * spread))
    if "wo again" in right:
        first, again = (
            [right[f"{primary}{word}"][problem] - right[f"wo{word}"][problem] for problem in old]
            for word in ("", " again")
        )
        moved = [second - one for one, second in zip(first, again, strict=True)]
        row = shown[primary]
        assert row["aa_difference"] == pytest.approx(100 * sum(moved) / n / k)
        again = {(task, key) for task, key in texts if key[-1] == 1}
        pairs = [(texts[task, (*key[:-1], 0)], texts[task, key]) for task, key in again]
        assert (row["aa_samples"], row["aa_changed"]) == (
            len(pairs),
            sum(old != new for old, new in pairs),
        )
