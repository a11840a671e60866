"""Commands in processes of their own: `mless run`, and what it is compared with.

python -m harness.verification.processes raw OUT CONFIG N [KEY=VALUE ...]     one `vllm.LLM.generate` call over a run's
                                                                             requests; N problems, 0 for all
python -m harness.verification.processes logits OUT CONFIG N [KEY=VALUE ...] first-token log-probabilities of N prompts
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.errors import EngineError
from harness.experiment.config import load_config
from harness.experiment.plan import Plan, make_plan
from harness.experiment.requests import make_requests

QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
LOG_BYTES = 2000
"""How much of a failed command's log is shown."""
STOP_SECONDS = 20
"""A command that is told to end may take this long; then it is killed."""


def say(text: str) -> None:
    """Print what is going on, with the time."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, figures: Any) -> None:
    """Write figures as JSON, and make the folder for them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def start_logged(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command whose output goes into a log file, and end it and all that it started with the context."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **QUIET, **(environment or {})},
            start_new_session=True,
        )
        try:
            yield process
        finally:  # whatever stops us: an engine must not stay behind
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)


def run_logged(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> float:
    """Run a command to its end; its output goes into a log file.

    Returns:
        Wall seconds.

    Raises:
        EngineError: the command failed; the message has the end of its log.
    """
    started = time.monotonic()
    with start_logged(command, log, environment) as process:
        if process.wait():
            end = log.read_text(encoding="utf-8", errors="replace")[-LOG_BYTES:].strip()
            raise EngineError(
                f"`{' '.join(command[1:5])} ...` failed with exit code {process.returncode}. {log} ends: {end}"
            )
    return time.monotonic() - started


def mless_command(config: Path, output: Path, overrides: Sequence[str] = (), limit: int | None = None) -> list[str]:
    """The command line of a quiet `mless run`."""
    command = [sys.executable, "-m", "harness.cli", "run", str(config), "--quiet", "--output", str(output)]
    command += [part for override in overrides for part in ("--set", override)]
    return command + (["--limit", str(limit)] if limit else [])


def run_mless(
    config: Path, output: Path, log: Path, overrides: Sequence[str] = (), limit: int | None = None
) -> dict[str, Any]:
    """`mless run` in a fresh process; the timing of its receipt, and `wall_seconds` of the command.

    Raises:
        EngineError: it failed.
    """
    wall = run_logged(mless_command(config, output, overrides, limit), log)
    return {**read_json(output / "run.json")["timing"], "wall_seconds": round(wall, 2)}


def run_side(
    side: str, config: Path, written: Path, log: Path, overrides: Sequence[str] = (), limit: int | None = None
) -> dict[str, Any]:
    """Measure `raw` or `logits` (see the top of this file) in a fresh process; what it wrote, and its `wall_seconds`.

    Raises:
        EngineError: it failed.
    """
    command = [sys.executable, "-m", __name__, side, str(written), str(config), str(limit or 0)]
    wall = run_logged([*command, *overrides], log)
    return {**read_json(written), "wall_seconds": round(wall, 2)}


def _generate_raw(plan: Plan) -> dict[str, Any]:
    """Load `vllm.LLM` as `mless run` would load its engine, and time one call of `generate` over the same requests."""
    from vllm import LLM, TokensPrompt

    from harness.engines.vllm import device_type, sampling_parameters
    from harness.engines.vllm_arguments import engine_arguments, fit_to_cpu

    sampling = plan.config.resolve_sampling(None)
    requests = list(make_requests(plan, sampling))
    given = engine_arguments(plan.config.model_arguments())
    if device_type() == "cpu":
        fit_to_cpu(given, sampled=not sampling.greedy)
    llm = LLM(**given)
    prompts = [TokensPrompt(prompt_token_ids=list(request.prompt_token_ids or ())) for request in requests]
    parameters = [sampling_parameters(request) for request in requests]
    started = time.monotonic()
    outputs = llm.generate(prompts, parameters, use_tqdm=False)
    seconds = time.monotonic() - started
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    scheduler = llm.llm_engine.vllm_config.scheduler_config
    return {
        "samples": len(outputs),
        "tokens": tokens,
        "prompt_tokens": sum(len(request.prompt_token_ids or ()) for request in requests),
        "generation_seconds": round(seconds, 2),
        "tokens_per_second": round(tokens / seconds, 1),
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
    }


def _read_logprobs(plan: Plan) -> dict[str, Any]:
    """The first prompts of a run through its engine and through Hugging Face."""
    from harness.engines.vllm import VLLMEngine
    from harness.verification.logit_check import read_logprobs

    requests = list(make_requests(plan, plan.config.resolve_sampling({})))[: plan.limit]
    arguments = plan.config.model_arguments()
    prompts = [request.prompt_token_ids or () for request in requests]
    with closing(VLLMEngine(arguments, sampled=False)) as engine:
        found = read_logprobs(engine, str(arguments["pretrained"]), prompts)
        return {"engine": engine.facts(), "prompts": [asdict(one) for one in found]}


def main() -> None:
    """Measure one side, as the top of this file says."""
    side, written, config, number, *overrides = sys.argv[1:]
    plan = make_plan(load_config(Path(config), overrides), limit=int(number) or None)
    measure = {"raw": _generate_raw, "logits": _read_logprobs}[side]
    write_json(Path(written), measure(plan))


if __name__ == "__main__":
    main()
