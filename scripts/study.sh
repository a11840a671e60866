#!/usr/bin/env bash
# The study for several models: accuracies, flipped problems, their attention, a report, and five figures.
#
#     scripts/study.sh FOLDER MODEL...
#
# The same call continues a study that was interrupted, because each command continues what is there. A model that
# fails leaves the others alone. RUN_OPTIONS and FIGURE_OPTIONS are further options of `mless run` and of
# `mless figure`: RUN_OPTIONS="--limit=40" is a rehearsal.
study=${1:?expected a folder and models}
shift
set -o pipefail
read -ra run_options <<< "$RUN_OPTIONS"
read -ra figure_options <<< "$FIGURE_OPTIONS"
figures="qwen-heads-12-13-14 mless-vs-random-sentence qwen-layers-1-2-3-head-22 llama-heads-20-25-26"
runs=()
failures=()
# a command that was interrupted ends with a code of its own, after which bash would take the next step
trap 'exit 130' INT TERM

take() {
    echo "study   $*" >&2
    "$@" || { failures+=("$*") && false; }
}

for model in "$@"; do
    run=$study/$(basename "$model")
    if [[ " ${runs[*]} " == *" $run "* ]]; then
        echo "study   two models have the name $(basename "$model")" >&2
        exit 2
    fi
    take mless run --model "$model" --output "$run" --quiet "${run_options[@]}" || continue
    runs+=("$run")
    take mless probe "$run" --flip changed --controls --layers 1-3 --rows last:16 -o "$run/flipped.traces" \
        && take mless heads "$run/flipped.traces" -o "$run/attention.html"
    take mless report "$run" -o "$run/report.html"
    draw=(--model "$model" -o "$run/figures" "${figure_options[@]}")
    for figure in $figures; do
        take mless figure "configs/figures/$figure.yaml" "${draw[@]}"
    done
    bars="bars={title: Accuracy, runs: [\"$run\"]}"  # accuracies of this run instead of published ones
    take mless figure configs/figures/accuracy-bars-and-head-14.yaml --set "$bars" "${draw[@]}"
done

if [ ${#failures[@]} -gt 0 ]; then
    printf 'not completed: %s\n' "${failures[@]}" >&2
fi
[ ${#runs[@]} -gt 0 ] || exit 2
mless table "${runs[@]}" | tee "$study/table.txt"
