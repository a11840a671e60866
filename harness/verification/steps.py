"""The steps of `mless verify`, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.verification import findings, measures
from harness.verification.findings import Finding
from harness.verification.measures import Bench


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step.

    Attributes:
        name: Also of its folder.
        title: What it shows.
        minutes: About, on one recent data-centre GPU with a 1.5B model.
        measure: Does the work and leaves files in the folder that it is given.
        derive: The findings, from that folder and the verification's; raises nothing if the files are as measured.
        needs: The device that it needs; None for any.
    """

    name: str
    title: str
    minutes: float
    measure: Callable[[Bench, Path], None]
    derive: Callable[[Path], list[Finding]]
    needs: str | None = None


def steps() -> tuple[Step, ...]:
    """All steps, in their order."""
    repeats = {
        "float32": ["model.arguments.dtype=float32"],
        "bfloat16": ["model.arguments.dtype=bfloat16"],
        "batch-invariant": ["model.arguments.dtype=bfloat16", "model.arguments.batch_invariant=true"],
    }
    return (
        Step(
            name="doctor",
            title="The installation",
            minutes=0.2,
            measure=measures.measure_doctor,
            derive=findings.derive_doctor,
        ),
        Step(
            name="demo",
            title="The bundled model, whole",
            minutes=2,
            measure=measures.measure_demo,
            derive=findings.derive_table,
        ),
        Step(
            name="kill",
            title="Killed with SIGKILL and continued by the same command",
            minutes=3,
            measure=measures.measure_kill,
            derive=findings.derive_kill,
        ),
        Step(
            name="logits",
            title="First-token log-probabilities beside Hugging Face, float32",
            minutes=3,
            measure=measures.measure_logits,
            derive=findings.derive_logits,
        ),
        *(
            Step(
                name=f"repeat-{name}",
                title=f"The baseline against itself (A/A), greedy, {name}",
                minutes=2,
                measure=measures.measure_repeats(changes),
                derive=findings.derive_repeats,
                needs="cuda" if name == "batch-invariant" else None,
            )
            for name, changes in repeats.items()
        ),
        Step(
            name=measures.PUBLISHED,
            title="The study's prompts, greedy, float32",
            minutes=5,
            measure=measures.measure_run(measures.PUBLISHED),
            derive=findings.derive_table,
        ),
        Step(
            name=f"{measures.PUBLISHED}-sampled",
            title="The study's prompts, 8 samples each, float32",
            minutes=20,
            measure=measures.measure_run(f"{measures.PUBLISHED}-sampled"),
            derive=findings.derive_table,
        ),
        Step(
            name="probe",
            title="The probe beside eager attention",
            minutes=2,
            measure=measures.measure_probe,
            derive=findings.derive_probe,
        ),
        Step(
            name="throughput",
            title="`mless run` beside raw vLLM and stock lm-eval, bfloat16",
            minutes=8,
            measure=measures.measure_throughput,
            derive=findings.derive_throughput,
        ),
    )
