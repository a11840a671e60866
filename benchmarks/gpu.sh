#!/usr/bin/env bash
# The GPU benchmarks in one command, on a machine with an NVIDIA GPU where `pip install '.[gpu]'` was done; about half
# an hour on an H200. Writes benchmarks/results-gpu.md. Options: see benchmarks/gpu.py; PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python}
if [[ " $* " != *" --small "* ]] && ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
    echo "gpu.sh: nvidia-smi finds no GPU here. Needed are an NVIDIA GPU and \`pip install '.[gpu]'\`." >&2
    exit 2
fi
if ! "$python" -c "import harness, torch, transformers, vllm" 2>/dev/null; then
    echo "gpu.sh: $python lacks mless, torch, transformers or vllm. Run \`pip install '.[gpu]'\`, or set PYTHON." >&2
    exit 2
fi
exec "$python" -m benchmarks.gpu "$@"
