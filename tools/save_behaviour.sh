#!/usr/bin/env bash
# Save the output of the commands, to test that a change of the code does not change behaviour:
#
#     tools/save_behaviour.sh before && ... && tools/save_behaviour.sh after && diff -r before after
#
# Prompts of all shipped configs, dry runs, grades of the committed answers, greedy answers of
# SmolLM2, traces of five prompts, tables and comparisons as JSON. It takes about four minutes on
# two cores; QUICK=1 leaves out the answers and traces, which need a model. MATH500_PATH names a
# file with MATH-500's problems. Temporary: it goes with issue 49.
set -eu
mkdir -p "$1"
out=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HF_HUB_OFFLINE=1 PATH="$PWD/.venv/bin:$PATH" PYTHONPATH=$PWD COLUMNS=100 NO_COLOR=1
without_times() {
    sed -E '/seconds|tokens\/s|^time |generated at|[0-9]{4}-[0-9]{2}-[0-9]{2}T/d' \
        | sed "s#$work#WORK#g"
}

python - > "$out/prompts.txt" << 'PYTHON'
import json
from pathlib import Path

from harness.errors import HarnessError
from harness.experiment.generation_settings import Sampling
from harness.experiment.plan import make_plan, make_requests
from harness.experiment.run_config import load_config

for path in sorted(Path("configs/runs").glob("*.yaml")):
    try:
        config = load_config(path, ["model.model_args.pretrained=smollm2"])
        plan = make_plan(config, limit=3)
        for request in make_requests(plan, Sampling(max_tokens=1)):
            fields = [request.task, request.problem_id, request.prompt_sha256]
            fields += [request.prompt_token_sha256, request.seed]
            print(path.name, *fields, json.dumps(request.intervention, default=dict))
    except HarnessError as error:
        print(path.name, type(error).__name__, error)
PYTHON

for config in configs/runs/*.yaml; do
    mless run "$config" --set model.model_args.pretrained=smollm2 --limit 3 --dry-run 2>&1 \
        | without_times > "$out/dry-run-$(basename "$config" .yaml).txt" || true
done
cp -r results/example "$work/example"
mless regrade "$work/example" 2>&1 | without_times > "$out/regrade.txt"
for file in scores prompts journal; do
    xzcat "$work/example/$file.jsonl.xz" | tail -n +2 | sha256sum > "$out/$file.sha256"
done
mless table results/example --mediators --audit --format json > "$out/table.json"
mless table results/example --mediators --audit > "$out/table.txt"
mless table results/example --models --format json > "$out/models.json"
mless table results/example --by level --format csv > "$out/by-level.csv"
mless compare results/example:wo results/example:mless --format json > "$out/compare.json" || true
mless compare results/example:wo results/example:mless > "$out/compare.txt" 2>&1 || true
mless show results/example --changed 2>&1 | head -200 > "$out/show.txt"
for kind in forest accuracy; do
    mless plot results/example --kind $kind -o "$work/plots" > /dev/null 2>&1 || true
done
cp "$work"/plots/*.csv "$out/" 2> /dev/null || true
for name in run table compare show plot report probe heads figure regrade doctor fetch tasks; do
    mless $name --help > "$out/help-$name.txt"
done
[ -n "${QUICK:-}" ] && exit

mless run configs/runs/products.yaml --limit 2 --quiet -o "$work/run" > "$out/run.txt" 2>&1
python - "$work/run" > "$out/answers.txt" << 'PYTHON'
import sys

from harness import load_run

columns = ["condition", "prompt_token_sha256", "completion", "verdict"]
print(load_run(sys.argv[1]).astype(str)[columns].sort_values(columns).to_csv(index=False))
PYTHON
sed -i -E '/tokens\/s|seconds|took|[0-9] s/d' "$out/run.txt"
mless probe results/example --flip changed --n 5 --layers 1-2 \
    -o "$work/probed.traces" 2>&1 | without_times > "$out/probe.txt"
mless heads "$work/probed.traces" --top 999 > "$out/heads.txt"
