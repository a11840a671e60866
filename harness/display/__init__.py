"""Results for people: tables, figures, the HTML report, flips side by side, plans, and progress during a run."""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "describe_plan": ["describe_plan"],
        "table_pages": ["make_leaderboard_page", "make_table"],
        "plots": ["make_plots"],
        "report.page": ["write_report"],
        "flips_side_by_side": ["print_page"],
        "progress": ["Progress", "progress_bar"],
    },
)
