"""What is kept of a run, and how runs and lm-eval's logs are read again.

journal + scores + prompts + receipt = a run folder -> one frame of samples
"""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "journal": ["Journal"],
        "folder": ["RunFolder"],
        "find_runs": ["locate", "locate_one"],
        "read_run": ["read_run"],
        "run": ["Run"],
        "comparable": ["by_table", "join"],
        "sample_frame": ["load_run", "read_receipt"],
        "lm_eval_logs.sample_log": ["read_log"],
        "prompt_source": ["Source", "read_source"],
    },
)
