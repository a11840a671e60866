import json

from tests.gpu import run_jobs


def test_a_job_passes_fails_or_is_cut_off_with_all_that_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(run_jobs, "FOLDER", tmp_path)
    lines = [
        "good|9|echo 'measured: 3 of 4'; echo end",
        "bad|9|exit 3",
        f"slow|1|setsid sh -c 'sleep 3; touch {tmp_path}/survivor' & sleep 60",
        "late|60|sleep 60",
        "never|9|echo",
    ]
    (tmp_path / "list.jobs").write_text("# name|seconds|command\n" + "\n".join(lines))
    jobs = run_jobs.read_jobs("list", tmp_path, limit_factor=1)
    run_jobs.run_jobs(jobs, at_once=1, seconds=5, summary=tmp_path / "list.json")
    summary = json.loads((tmp_path / "list.json").read_text())
    outcomes = ["passed", "failed", "cut off", "cut off", "not started"]
    assert [facts["outcome"] for facts in summary] == outcomes
    assert summary[0]["measured"] == ["3 of 4"] and summary[0]["last_line"] == "end"
    assert not (tmp_path / "survivor").exists()
