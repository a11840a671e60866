"""Results for people: tables, figures, the HTML report, flips side by side, plans, and progress during a run."""
