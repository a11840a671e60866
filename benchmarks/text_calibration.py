"""Simulate runs with other texts, and test their range. Writes OTHER_TEXTS.md.

    python -m benchmarks.text_calibration [--small]

A run has a baseline, texts of one family, one more ordinary text, and fillers that are 3, 6 and 10
points better than the mean text, all on the same problems. Log-odds are sums of normal effects: of
clusters of problems, of draws of examples, of both with each text, and of the text. Problems and
draws are new in every run. Draws take turns, so a problem is asked with one of them. Settings are
drawn by a seed before anything is simulated. With --small there are few runs, and nothing is
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

from benchmarks.report import table
from benchmarks.runs import ROOT, make_parser
from harness.analysis.other_texts import place_effect
from harness.array_types import Floats
from harness.constants import NOT_SHOWN

SEED, SETTINGS, CHUNK = 20_266, 40, 100
RUNS = 20_000
"""Of each setting. 2,000 would have a standard error of 0.6 and could not tell 7.2 from 7."""
LEAST_COVERAGE = {"normal": 93, "skewed": 90, "one": 90}
"""By the effects of texts. `skewed`: exponential. `one`: one text in 20 has an effect, five times
`spread`, and all others have the same."""
GAINS = (3, 6, 10)
EFFECTS = {"cluster": (1.5, 0.5), "draws": (0.3, 0.2)}
"""Standard deviations of effects on log-odds: common to all prompts, and of each text."""
TEXT = """\
# The range of other texts, simulated

Written by `make calibrate` (`python -m benchmarks.text_calibration`): {runs:,} runs of each
setting, seed {seed}. The settings were drawn before anything was run: 8 to 40 texts, 20 to 500
problems, accuracies of 2 to 98 percent, clusters of 1, 3 or 5 problems, 1 or 4 samples, 1, 4 or 8
draws of examples, and a standard deviation of the texts' effects (spread) of 0 to 0.6 in log-odds.
Half of the settings have `normal` effects of texts; the top of that file describes all populations.

- covers: the range contains the observed difference of one more ordinary text. Target: at least 93
  percent for `normal`, 90 for the others. Few problems make differences discrete: it covers more.
- not shown: there is no word, because the range reaches 0 or 100 percent or its width is 0.
- called: this ordinary text is called above or below. Target: at most 7 percent.
- of words: the same as a share of the runs with a word. It is higher where many runs have none: the
  runs with a narrow range have a word, and in these more texts lie outside. Without this rule it
  would be what `covers` lacks to 100.
- +3, +6, +10: a filler that is about so many points better than the mean text (up to an accuracy
  of 99.5 percent) is called above.

The standard error is {error:.1f} near 7 percent. A missed target is **bold**.

"""


def draw_settings() -> Iterator[dict[str, Any]]:
    """Draw the settings, by the columns of the page."""
    rng = np.random.default_rng(SEED)
    for number in range(SETTINGS):
        yield {
            "effects": ("normal", "skewed", "normal", "one")[number % 4],
            "texts": int(rng.integers(8, 41)),
            "problems": round(20 * 25 ** rng.uniform()),
            "accuracy": round(rng.uniform(2, 98)),
            "cluster": int(rng.choice((1, 1, 3, 5))),
            "samples": int(rng.choice((1, 4))),
            "draws": int(rng.choice((1, 4, 8))),
            "spread": round(rng.uniform(0, 0.6), 2),
        }


def simulate(setting: dict[str, Any], rng: np.random.Generator) -> Floats:
    """Percent correct [run, condition] of CHUNK runs: baseline, one for each gain, the texts."""
    shape = (CHUNK, 2 + len(GAINS) + setting["texts"])
    draw_effects: dict[str, Callable[[], npt.NDArray[Any]]] = {
        "normal": lambda: rng.normal(size=shape),
        "skewed": lambda: rng.exponential(size=shape) - 1,
        "one": lambda: 5 * (rng.random(shape) < 0.05) - 0.25,
    }
    # The mean of expit over normal log-odds, nearly: Zeger, Liang and Albert (1988),
    # doi:10.2307/2531734.
    scale = np.sqrt(1 + 0.346 * np.square(list(EFFECTS.values())).sum())
    means = scale * logit(np.minimum(0.995, (setting["accuracy"] + np.array([0, *GAINS])) / 100))
    log_odds = means[0] + setting["spread"] * draw_effects[setting["effects"]]()
    # the baseline has no text, and better fillers have exactly their effect
    log_odds[:, : len(means)] = means
    log_odds = log_odds[:, :, None]
    numbers = np.arange(setting["problems"])
    groups = {"cluster": numbers // setting["cluster"], "draws": numbers % setting["draws"]}
    for name, (common, by_text) in EFFECTS.items():
        size = int(groups[name].max()) + 1
        values = common * rng.normal(size=(CHUNK, 1, size))
        values = values + by_text * rng.normal(size=(*shape, size))
        log_odds = log_odds + values[:, :, groups[name]]
    right = rng.binomial(setting["samples"], expit(log_odds)).mean(axis=2)
    return np.asarray(100 / setting["samples"] * right)


def measure(setting: dict[str, Any], runs: int) -> dict[str, float]:
    """The measures of a setting in percent."""
    rng = np.random.default_rng([SEED, setting["texts"], setting["problems"]])
    places, covers = [], []
    for _ in range(runs // CHUNK):
        for baseline, *conditions in simulate(setting, rng):
            tested, texts = np.split(np.array(conditions) - baseline, [len(GAINS) + 1])
            rows = [place_effect(effect, texts, baseline) for effect in tested]
            places.append([row["place"] for row in rows])
            # without a width the range is the mean
            low, high = (rows[-1].get(end, texts[0]) for end in ("range_low", "range_high"))
            covers.append(low <= tested[-1] <= high)
    *better, ordinary = np.array(places).T
    is_called = np.isin(ordinary, ["above", "below"])
    has_word = ordinary != NOT_SHOWN
    shares = {"covers": covers, "not shown": ~has_word, "called": is_called}
    # if no run has a word, nothing is called
    shares["of words"] = is_called[has_word] if has_word.any() else is_called
    shares |= {f"+{gain}": words == "above" for gain, words in zip(GAINS, better, strict=True)}
    return {name: 100 * float(np.mean(share)) for name, share in shares.items()}


def page(runs: int) -> str:
    """Format the page in Markdown."""
    rows = []
    for setting in draw_settings():
        shares = measure(setting, runs)
        cells = {name: f"{share:.1f}" for name, share in shares.items()}
        if shares["covers"] < LEAST_COVERAGE[setting["effects"]]:
            cells["covers"] = f"**{cells['covers']}**"
        if shares["called"] > 7:
            cells["called"] = f"**{cells['called']}**"
        rows.append([*map(str, setting.values()), *cells.values()])
    error = 100 * (0.07 * 0.93 / runs) ** 0.5
    return TEXT.format(runs=runs, seed=SEED, error=error) + table([*setting, *shares], rows)


if __name__ == "__main__":
    if make_parser(__doc__).parse_args().small:
        print(page(CHUNK))
    else:
        (ROOT / "benchmarks/OTHER_TEXTS.md").write_text(page(RUNS), encoding="utf-8")
