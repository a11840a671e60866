"""What exists only because of lm-eval: functions that the tasks name, links to the tasks, lm-eval's result files."""
