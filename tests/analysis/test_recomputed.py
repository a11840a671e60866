"""Every number of the main table again, from the raw journal, with nothing of ours but the files."""

import json
import math
import random
import statistics
from collections import Counter, defaultdict
from fractions import Fraction

import pytest
from scipy.optimize import brentq
from scipy.stats import binomtest, norm

from tests.make import GREEDY_RUN, REGISTERED, write_run


def lines(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


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


def score(values, mean, reach):
    """Standard errors between the mean of the values and `mean`, under the likeliest distribution that has it."""
    n, counts = len(values), Counter(values)

    def excess(tilt):
        return sum(count * (v - mean) / (1 + tilt * (v - mean)) for v, count in counts.items())

    low, high = -1 / (reach - mean), 1 / (mean + reach)
    low, high = low + 1e-12 * (high - low), high - 1e-12 * (high - low)
    tilt = low if excess(low) <= 0 else high if excess(high) >= 0 else brentq(excess, low, high, xtol=1e-14)
    weights = {v: count / n / (1 + tilt * (v - mean)) for v, count in counts.items()}
    left = max(0.0, 1 - sum(weights.values()))
    bound = -reach if tilt > 0 else reach
    variance = sum(w * (v - mean) ** 2 for v, w in weights.items()) + left * (bound - mean) ** 2
    return (sum(values) / n - mean) / math.sqrt(variance / n)


def tango(values, mean, _):
    """The same for values -1, 0 and 1 by Tango's closed form."""
    n, b, c = len(values), values.count(1), values.count(-1)
    linear, last = -b - c + (2 * n - b + c) * mean, -c * mean * (1 - mean)
    chance = (math.sqrt(linear**2 - 8 * n * last) - linear) / (4 * n)
    return (b - c - n * mean) / math.sqrt(n * (2 * chance + mean * (1 - mean)))


def compared(old, new, k):
    """Difference, flips, p and interval ends by level, of right samples by problem."""
    changes = [new[problem] - old[problem] for problem in old]
    n, seen = len(changes), max(map(abs, changes)) / k
    reach = seen + (1 - seen) * (2 / 3) ** sum(map(bool, changes))
    values, statistic = [change / k for change in changes], tango if k == 1 else score
    if k == 1:
        up, down = changes.count(1), changes.count(-1)
        p = binomtest(up, up + down).pvalue if up + down else 1.0
    else:
        p = max(sign_flips(changes), 2 * norm.sf(abs(score(values, 0.0, reach))))
    mean = sum(values) / n

    def ends(level):
        critical = norm.isf((1 - level) / 2)
        return [
            brentq(
                lambda at: abs(statistic(values, at, reach)) - critical, mean + side * 1e-13, side * reach * 0.999999
            )
            for side in (-1, 1)
        ]

    gained = sum((k - old[i]) * new[i] for i in old) / k**2
    lost = sum(old[i] * (k - new[i]) for i in old) / k**2
    return {"difference": 100 * mean, "wrong_to_right": gained, "right_to_wrong": lost, "p": p}, ends


@pytest.fixture(params=[1, 5])
def folder(request, tmp_path):
    """A greedy run of the toy model, and one of five samples a problem, right by chance."""
    if request.param == 1:
        return GREEDY_RUN
    draw = random.Random(3)

    def answer(_, target):
        return f"\\boxed{{{target if draw.random() < 0.8 else -1234}}}", "stop"

    several = {"samples_per_problem": 5, "sampling": {"temperature": 0.5}, "replicates": 2, **REGISTERED}
    return write_run(tmp_path / "run", answer, limit=200, conditions=["wo", "mless", "mful", "random"], **several)


def test_the_table_is_what_the_raw_files_say(folder, mless):
    verdicts = {line["key"]: line for line in lines(folder, "scores")[1:]}
    right: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    k = 0
    for line in lines(folder, "journal")[1:]:
        if "task" in line:
            arm = line["task"].removeprefix("demo_") + " again" * line["replicate"]
            right[arm][line["problem_id"]] += verdicts[line["key"]]["verdict"] == "correct"
            k = max(k, line["sample_index"] + 1)
    table = json.loads(mless("table", str(folder), "--format", "json").stdout)
    shown = {row["condition"]: row for row in table["rows"]}
    old = right["wo"]
    n = len(old)
    header = lines(folder, "journal")[0]
    pairs = {new if base == "wo" else f"{new} - {base}": (new, base) for new, base in header["contrasts"]}
    primary = header["primary"][0]
    found = {name: compared(right[base], right[new], k) for name, (new, base) in pairs.items()}
    p = {name: found[name][0]["p"] for name in pairs}
    others = sorted(pairs.keys() - {primary}, key=p.get)
    adjusted, gate = {primary: p[primary]}, p[primary]
    for place, name in enumerate(others):
        gate = adjusted[name] = max(gate, min(1, (len(others) - place) * p[name]))
    for name in pairs:
        numbers, ends = found[name]
        low, high = ends(0.95 if name == primary else 1 - 0.05 / len(others))
        assert adjusted[name] > 0.05, "so that all intervals hold 0"
        numbers |= {"p_adjusted": adjusted[name], "low": 100 * min(low, 0), "high": 100 * max(high, 0)}
        assert {key: shown[name][key] for key in numbers} == pytest.approx(numbers, rel=1e-7, abs=1e-7)
    for name, row in shown.items():
        shares = [right[name.partition(" - ")[0]][problem] / k for problem in old]
        mean = sum(shares) / n
        spread = math.sqrt(sum((share - mean) ** 2 for share in shares) / (n - 1) / n)
        assert (row["n"], row["k"]) == (n, k)
        assert (row["accuracy"], row["standard_error"]) == pytest.approx((100 * mean, 100 * spread))
    if "wo again" in right:
        first, again = (
            [right[f"{primary}{word}"][problem] - right[f"wo{word}"][problem] for problem in old]
            for word in ("", " again")
        )
        moved = [second - one for one, second in zip(first, again, strict=True)]
        row = shown[primary]
        assert row["aa_difference"] == pytest.approx(100 * sum(moved) / n / k)
        spread = 1.96 * statistics.stdev(moved) / k * 100 / math.sqrt(n)
        half = (row["aa_high"] - row["aa_low"]) / 2
        assert row["aa_low"] < row["aa_difference"] < row["aa_high"] and half == pytest.approx(spread, rel=0.1)
