#!/usr/bin/env bash
# Run the jobs of a list, several at the same time, each with its own time limit and its own log file:
#
#     tests/gpu/run_jobs.sh LIST LOGS [name of a job]...
#
# The list has a line `name|time limit in seconds|command` for each job. Jobs start in the list's order, so the most
# important ones come first. A command finds pytest, with its options, in $PYTEST. When a job ends, its line is
# printed, with the numbers that it measured, and stored in LOGS/summary.txt. The exit code is 0 if all jobs passed.
#
# Variables: PYTHON; AT_ONCE, jobs at the same time (1); SECONDS_IN_ALL (300), after which all jobs are cut off;
# LIMIT_FACTOR (1), which multiplies each time limit.
set -u
list=$1
export LOGS=$2
shift 2
export LIMIT_FACTOR=${LIMIT_FACTOR:-1} PYTHONUNBUFFERED=1
at_once=${AT_ONCE:-1}
END=$(($(date +%s) + ${SECONDS_IN_ALL:-300}))
# Warnings are ignored: a deprecation in another version of torch or vLLM refutes no claim.
PYTEST="${PYTHON:-python} -m pytest -p no:cacheprovider -W ignore -m gpu -q -s"
# Each job has a share of the cores. Inductor compiles for a short time only, so its processes may be more.
threads=$(($(nproc) / at_once))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 1 ? threads : 1))} TORCHINDUCTOR_COMPILE_THREADS=4 PYTEST END

run_job() {
    IFS='|' read -r name limit command <<< "$1"
    log=$LOGS/$name.log
    start=$(date +%s)
    limit=$((limit * LIMIT_FACTOR))
    remaining=$((END - start))
    if ((remaining <= 0)); then
        echo "$name was not started"
        return 1
    fi
    # on SIGINT pytest ends the runs that a test has started, which have sessions of their own
    timeout --signal=INT --kill-after=20 $((limit < remaining ? limit : remaining)) \
        bash -c "$command" < /dev/null > "$log" 2>&1
    case $? in
        0) outcome=passed ;;
        124 | 137) outcome="cut off" ;;
        *) outcome=failed ;;
    esac
    seconds=$(($(date +%s) - start))
    printf '%-22s %5d s  %-8s %s\n' "$name" $seconds "$outcome" "$(grep . "$log" | tail -n 1 | cut -c -150)"
    grep '^measured: ' "$log"
    [ "$outcome" = passed ]
}
export -f run_job

mkdir -p "$LOGS"
set -o pipefail
names=$(IFS='|' && echo "${*:-.*}")
grep -v '^#' "$list" | grep -E "^($names)\|" \
    | xargs -d '\n' -P "$at_once" -I JOB bash -c 'run_job "$1"' _ JOB | tee "$LOGS/summary.txt"
