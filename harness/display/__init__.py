"""Results for people: tables, figures, the report, flips, dry runs, and progress of a run."""
