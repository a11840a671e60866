"""The benchmarks that need a GPU: with a 7B model's shape, mless, raw vLLM, the study's loop, and the probe.

Weights are vLLM's dummy ones and the tokenizer is the bundled model's, so nothing is downloaded; every completion runs
to the limit but for the rare one that draws the end token. With --model a real model takes their place.

    bash benchmarks/gpu.sh [--model NAME] [--copies 2] [--max-gen-toks 1024]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from benchmarks import probe_gpu, report
from benchmarks.runs import ENVIRONMENT, ROOT, run_logged, say, work_folder
from harness import resources

TARGET_ENGINE = 0.97
TARGET_LOOP = 50
STUDY_REQUESTS = 3 * 500
SHAPE = ROOT / "configs" / "architectures" / "qwen2.5-math-7b.yaml"
SMALL_SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CPU_ARGUMENTS = {
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**30,
    "enable_chunked_prefill": False,
    "max_num_batched_tokens": 8192,
}


def main() -> None:
    """Measure all, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a real model instead of the dummy one")
    parser.add_argument("--copies", type=int, default=2, help="times that each bundled problem is asked")
    parser.add_argument("--pairs", type=int, default=2, help="rounds of the engine benchmark")
    parser.add_argument("--max-gen-toks", type=int, default=1024)
    parser.add_argument("--prompts", type=int, default=3, help="prompts of the batch-1 loop")
    parser.add_argument("--small", action="store_true", help="a tiny model on any machine, to see that it works")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.max_gen_toks = 16
    elif complaint := missing():
        sys.exit(f"gpu.sh: {complaint}")
    small = arguments.small
    folder = work_folder(small) / "gpu"
    folder.mkdir(exist_ok=True)
    model = arguments.model or str(model_folder(folder / "model", SMALL_SHAPE if small else {}))
    settings: dict[str, Any] = {"pretrained": model, "dtype": "bfloat16", "max_model_len": 4096, "enforce_eager": False}
    if not arguments.model:
        settings["load_format"] = "dummy"
    if small:
        settings |= CPU_ARGUMENTS

    say("gpu: 1 of 4, mless run against raw vLLM")
    engine = _engine(settings, arguments, folder / "engine.json")
    say("gpu: 2 of 4, the batch-1 loop in fp32 and bf16")
    loops = [_loop(model, dtype, arguments, folder) for dtype in ("float32", "bfloat16")]
    say("gpu: 3 of 4, vLLM's own throughput benchmark")
    ceiling = _ceiling(settings, arguments, engine["rounds"][0]["raw"], folder)
    say("gpu: 4 of 4, the probe against eager attention")
    device, shape = ("cpu", SMALL_SHAPE) if small else ("cuda", {})
    attention = probe_gpu.measure(SHAPE, folder / "probe", device=device, small=small, **shape)

    command = " ".join(["bash benchmarks/gpu.sh", *sys.argv[1:]])
    facts = report.facts(command)
    sections = [
        {**one, "facts": facts}
        for one in (engine, _against_loop(engine, loops), _against_ceiling(engine, ceiling), attention)
    ]
    name = arguments.model or "a model of Qwen2.5-Math-7B's shape with dummy weights"
    title = "GPU benchmarks, cut short: no measure of speed" if small else f"GPU benchmark results: {name}"
    page = (work_folder(small) if small else Path(__file__).parent) / "results-gpu.md"
    page.write_text(report.page(title, sections, command), encoding="utf-8")
    say(f"written: {page.relative_to(ROOT)}")


def missing() -> str | None:
    """What this machine lacks, in one line; None if it can run the benchmarks."""
    needed = "Needed are an NVIDIA GPU and `pip install '.[gpu]'`."
    try:
        import torch

        found = version("vllm")
    except (ImportError, PackageNotFoundError) as error:
        return f"the package {error.name} is not installed. {needed}"
    if "cpu" in found:
        return f"vllm {found} is a build for the CPU. {needed}"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU. {needed}"
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    return f"the GPU has {memory:.0f} GiB, and 7B weights in fp32 need 40. {needed}" if memory < 40 else None


def model_folder(folder: Path, shape: Mapping[str, Any]) -> Path:
    """A model's config and the bundled tokenizer, without weights."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    facts = yaml.safe_load(SHAPE.read_text(encoding="utf-8"))["config"]
    (folder / "config.json").write_text(
        json.dumps({**facts, "torch_dtype": "bfloat16", **shape}, indent=2), encoding="utf-8"
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(resources.demo_model() / name, folder / name)
    return folder


def _engine(settings: Mapping[str, Any], arguments: argparse.Namespace, path: Path) -> dict[str, Any]:
    """The engine benchmark on this model."""
    command = [sys.executable, "-m", "benchmarks.engine", "--json", str(path), "--target", str(TARGET_ENGINE)]
    command += ["--pairs", str(arguments.pairs), "--copies", str(arguments.copies)]
    command += [f"--set=model.arguments={json.dumps(settings)}", f"--set=max_gen_toks={arguments.max_gen_toks}"]
    command += ["--set=model.label=benchmark"]
    command += ["--small"] if arguments.small else []
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **ENVIRONMENT})
    if done.returncode:
        sys.exit("gpu.sh: the engine benchmark failed; see above.")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _loop(model: str, dtype: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The study's loop in a fresh process."""
    written = folder / f"loop-{dtype}.json"
    command = [sys.executable, "-m", "benchmarks.hf_loop", "--model", model, "--dtype", dtype, "--json", str(written)]
    command += ["--prompts", str(arguments.prompts), "--max-new-tokens", str(arguments.max_gen_toks)]
    run_logged(command, written.with_suffix(".log"))
    return dict(json.loads(written.read_text(encoding="utf-8")))


def _ceiling(
    settings: Mapping[str, Any], arguments: argparse.Namespace, first: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """`vllm bench throughput` with as many requests, their mean prompt length and their longest output length.

    Its prompts are random: it takes none of ours without a chat template. It samples, and never stops early.
    """
    written = folder / "throughput.json"
    options = {**settings, "model": settings["pretrained"], "dataset-name": "random", "random-range-ratio": 0}
    del options["pretrained"]
    options |= {"num-prompts": first["samples"], "random-input-len": round(first["prompt_tokens"] / first["samples"])}
    options |= {"random-output-len": arguments.max_gen_toks, "output-json": written}
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "throughput"]
    for name, value in options.items():
        flag = name.replace("_", "-")
        command += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    run_logged(command, folder / "throughput.log")
    timed = json.loads(written.read_text(encoding="utf-8"))
    tokens = timed["num_requests"] * arguments.max_gen_toks
    return {**timed, "output_tokens": tokens, "output_tokens_per_second": tokens / timed["elapsed_time"]}


def _against_loop(engine: Mapping[str, Any], loops: list[dict[str, Any]]) -> dict[str, Any]:
    ours = _audited(engine)
    rows = []
    for loop in loops:
        ratio = ours["tokens_per_second"] / loop["tokens_per_second"]
        hours = ours["tokens"] / ours["samples"] * STUDY_REQUESTS / loop["tokens_per_second"] / 3600
        rows.append(
            report.row(
                f"batch-1 loop, {loop['dtype']}{' (as published)' if loop['dtype'] == 'float32' else ''}",
                f"{loop['tokens_per_second']:.1f} tokens/s against {ours['tokens_per_second']:,.0f}; "
                f"{STUDY_REQUESTS:,} such completions would take {hours:.1f} h",
                target=f"mless at least {TARGET_LOOP} times faster",
                ratio=ratio,
                met=ratio >= TARGET_LOOP,
            )
        )
    return {
        "title": "Against the study's generation loop",
        "what": "transformers' plain `generate`, greedy, one prompt at a time, beside `mless run` with journal, "
        "grading and audit on.",
        "rows": rows,
        "notes": [
            f"The loop was timed on {loops[0]['prompts']} prompts, {loops[0]['tokens']:,} tokens, and extrapolated; "
            "loading and a warm-up call are not counted.",
        ],
    }


def _against_ceiling(engine: Mapping[str, Any], ceiling: Mapping[str, Any]) -> dict[str, Any]:
    ours = _audited(engine)
    speed = ceiling["output_tokens_per_second"]
    measured = f"{speed:,.0f} generated tokens/s against {ours['tokens_per_second']:,.0f}"
    return {
        "title": "The ceiling: `vllm bench throughput`",
        "what": f"{ceiling['num_requests']:,} requests with random prompts of the same mean length and the same "
        "longest output, which there every request reaches.",
        "rows": [report.row("share of it that mless reaches", measured, ratio=ours["tokens_per_second"] / speed)],
        "notes": ["It draws at temperature 1, its prompts share no prefix, and it keeps nothing."],
    }


def _audited(engine: Mapping[str, Any]) -> dict[str, Any]:
    """The median run of `mless run` with everything on."""
    runs = sorted((one["audited"] for one in engine["rounds"]), key=lambda run: run["tokens_per_second"])
    return dict(runs[len(runs) // 2])


if __name__ == "__main__":
    main()
