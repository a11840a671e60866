"""`mless pack`: compress a run."""

from __future__ import annotations

from harness.options import RunPath


def pack(
    run: RunPath,
) -> None:
    """Compress a run's files to a tenth or less, to commit or send them. Every command reads packed runs."""
    from harness.runs.folder import pack as pack_run

    pack_run(run)
