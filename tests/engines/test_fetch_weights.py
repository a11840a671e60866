"""A model is fetched from a hub before the engine starts. A thread of this process is the hub."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.make import ROOT, TOY_MODEL

FILES = {path.name: path.read_bytes() for path in Path(TOY_MODEL).iterdir()}
COMMIT = "1" * 40


class Hub(http.server.BaseHTTPRequestHandler):
    """One repository, `org/tiny`. The first time its weights stop half-way."""

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        name = self.path.partition("?")[0].rpartition("/")[2]
        found = FILES.get(name)
        if "/api/models/org/tiny" in self.path:
            found = json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": [{"rfilename": one} for one in FILES]})
            tree = [{"type": "file", "path": one, "size": len(text), "oid": one} for one, text in FILES.items()]
            found = json.dumps(tree).encode() if "/tree/" in self.path else found.encode()
        if found is None or "org/tiny" not in self.path:
            self.send_error(404)
            return
        self.send_response(200)
        for key, value in {
            "Content-Length": len(found),
            "ETag": f'"{hashlib.sha256(found).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
        }.items():
            self.send_header(key, str(value))
        self.end_headers()
        if body and name == "model.safetensors" and not self.server.cut:
            self.server.cut.append(name)
            self.wfile.write(found[: len(found) // 2])
            self.close_connection = True
        elif body:
            self.wfile.write(found)


@pytest.fixture
def hub():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.cut = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def fetch(hub, name, cache, *, offline="0"):
    code = f"from harness.engines.vllm import fetch_weights; fetch_weights({{'model': {name!r}}})"
    own = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(cache), "HF_HUB_OFFLINE": offline}
    environment = {**os.environ, **own, "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)


def test_weights_that_stop_half_way_are_fetched_whole_by_the_same_command(hub, tmp_path):
    done = fetch(hub, "org/tiny", tmp_path)
    if done.returncode:  # huggingface_hub tries again by itself where it takes the cause for a passing one
        assert "ModelError: org/tiny cannot be loaded" in done.stderr.splitlines()[-1]
        done = fetch(hub, "org/tiny", tmp_path)
    assert done.returncode == 0 and hub.cut, done.stderr[-2000:]
    stored = tmp_path / "hub" / "models--org--tiny" / "snapshots" / COMMIT
    assert {one.name: one.read_bytes() for one in stored.iterdir()} == FILES
    assert "model.safetensors" in done.stderr or "%" in done.stderr, "progress in bytes"


def test_what_the_hub_has_not_is_one_error_and_a_folder_or_offline_fetches_nothing(hub, tmp_path):
    missing = fetch(hub, "org/none", tmp_path)
    assert missing.returncode == 1 and "ModelError: " in missing.stderr.splitlines()[-1], missing.stderr[-500:]
    for name, offline in ((str(TOY_MODEL), "0"), ("org/tiny", "1")):
        assert fetch(hub, name, tmp_path, offline=offline).returncode == 0
    assert not hub.cut
