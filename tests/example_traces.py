"""Traces with known numbers, for tests of what is made of traces: every curve comes from a seeded generator."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

import numpy as np

from attention_probe.analysis.curves import average_curves
from attention_probe.traces import AttentionTraces, Trace, TraceHeader

LAYERS, HEADS = (0, 2), 3
FILLED = ("mless", "random")


def make_header(**changes):
    return TraceHeader(
        **{"model": "tiny", "layers": LAYERS, "head_count": HEADS, "conditions": ("wo", *FILLED)} | changes
    )


def make_trace(problem_id="p0", condition="wo", *, size=9, start=3, filler=4, seed=0, **changes):
    """A prompt of `size` original tokens; where there is a filler, its tokens stand before original token `start`."""
    inserted = filler if condition in FILLED else 0
    total = size + inserted
    random = np.random.default_rng([seed, sum(map(ord, problem_id + condition))])
    original = np.concatenate([np.arange(start), np.full(inserted, -1), np.arange(start, size)]).astype(np.int32)
    later = np.arange(total)[::-1].astype(np.int32)
    common = (size - np.cumsum(original >= 0)).astype(np.int32)
    curves = random.random((2, len(LAYERS), HEADS, total), dtype=np.float32)
    curves[0][:, :, later == 0] = np.nan
    curves[1][:, :, common == 0] = np.nan
    facts = {
        "problem_id": problem_id,
        "condition": condition,
        "subject": "Algebra",
        "level": 1 + seed % 5,
        "prompt_sha256": f"hash of {problem_id} {condition}",
        "tokens": tuple(f"{condition}{place}" for place in range(total)),
        "filler_span": (start, start + inserted) if inserted else None,
        "token_ids": random.integers(0, 1000, total).astype(np.int32),
        "roles": np.zeros(total, dtype=np.int8),
        "original_pos": original,
        "mean_all": curves[0],
        "mean_common": curves[1],
        "count_all": np.tile(later, (len(LAYERS), 1)),
        "count_common": np.tile(common, (len(LAYERS), 1)),
        "value_norm": random.random((len(LAYERS), HEADS, total), dtype=np.float32),
        "activation_histogram": random.integers(0, 1000, 101).astype(np.int32),
        "measures": {"mass_filler": random.random((len(LAYERS), HEADS), dtype=np.float32)},
    }
    return Trace(**facts | changes)


def write_traces(path, traces, **header):
    with AttentionTraces.create(path, make_header(**header), receipt={"seed": 1}) as opened:
        for trace in traces:
            opened.append(trace)
    return path


def same(one, other):
    """Whether two traces are equal in every number and word; NaN equals NaN."""
    for name in (one.name for one in fields(Trace)):
        a, b = getattr(one, name), getattr(other, name)
        if isinstance(a, np.ndarray):
            if a.dtype != b.dtype or not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
                return False
        elif name == "measures":
            if a.keys() != b.keys() or not all(np.array_equal(a[key], b[key], equal_nan=True) for key in a):
                return False
        elif a != b:
            return False
    return True


def aligned_curve(traces, *, condition, head, view="aligned", baseline=None, **options):
    """The curve of one head under one condition."""
    return average_curves(traces, conditions=[condition], heads=[head], view=view, baseline=baseline, **options)[0]


full_curve = partial(aligned_curve, view="full")
difference_curve = aligned_curve
