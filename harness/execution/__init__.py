"""The execution of a plan: a run is made or continued, and a finished run is graded again."""
