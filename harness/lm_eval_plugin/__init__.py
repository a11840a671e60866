"""The code for lm-eval: functions that the tasks name, task folders, lm-eval's result files."""
