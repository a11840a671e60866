"""It is done: a plan is run or continued, a finished run is graded again."""
