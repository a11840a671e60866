"""How fast mless is, beside what it stands in for; `python -m benchmarks` runs all and writes RESULTS.md."""
