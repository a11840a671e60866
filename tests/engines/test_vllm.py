"""What the engine does around vLLM: weights fetched, completions decoded; with the real one: test_engine.py."""

import hashlib
import http.server
import json
import os
import random
import subprocess
import sys
import threading
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.engines import vllm
from harness.engines.vllm import VLLMEngine
from harness.errors import ConfigError, ModelError
from harness.experiment.tokenizer import decode_completion
from tests.make import ROOT, TOY_MODEL


def test_an_engine_that_does_not_start_leaves_the_environment_as_it_was(monkeypatch):
    def prepare():
        os.environ["VLLM_LOGGING_LEVEL"] = os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] = "1"  # as vLLM itself sets some
        raise ModelError("it does not start")

    monkeypatch.setattr(vllm, "_prepare_environment", prepare)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    before = dict(os.environ)
    with pytest.raises(ModelError, match="it does not start"):
        VLLMEngine({"pretrained": "x", "dtype": "float32", "batch_invariant": True})
    assert dict(os.environ) == before


def test_two_engines_that_compute_otherwise_are_not_alive_at_once(monkeypatch):
    monkeypatch.setattr(vllm, "_alive", [SimpleNamespace(_invariant=False)])
    with pytest.raises(ConfigError, match="close that one first"):
        VLLMEngine({"pretrained": "x", "batch_invariant": True})


def an_output(request_id, token_ids, finish_reason=None):
    """As vLLM's RequestOutput, with what is new since the request's last one."""
    completion = SimpleNamespace(token_ids=token_ids, text="", finish_reason=finish_reason)
    return SimpleNamespace(request_id=request_id, outputs=[completion], finished=finish_reason is not None)


def test_steps_are_taken_until_one_finishes_a_request_or_the_time_is_over(monkeypatch):
    engine = VLLMEngine.__new__(VLLMEngine)
    engine.so_far, engine._parts = {}, {}
    steps = iter([
        [an_output("0", [1]), an_output("1", [2])],
        [],
        [an_output("0", [3, 4]), an_output("1", [5], "length")],
        [an_output("0", [6], "stop")],
    ])  # fmt: skip
    engine._engine = SimpleNamespace(step=steps.__next__)
    (finished,) = engine._take_steps()
    assert (finished.request_id, finished.outputs[0].token_ids) == ("1", [2, 5])
    assert engine.so_far == {0: 3}, "progress is known between two completions"
    (finished,) = engine._take_steps()
    assert (finished.request_id, finished.outputs[0].token_ids) == ("0", [1, 3, 4, 6])
    assert not engine.so_far and not engine._parts
    monkeypatch.setattr(vllm.constants, "STEPS_SECONDS", 0.02)
    engine._engine = SimpleNamespace(step=lambda: time.sleep(0.01) or [])
    assert engine._take_steps() == []


@pytest.mark.parametrize(
    ("given", "fetched"),
    [
        ({"model": "org/name", "revision": "abc"}, [("org/name", "abc", True)]),
        ({"model": "/"}, []),
        ({"model": "org/name", "load_format": "dummy"}, []),
        ({"model": "org/name", "download_dir": "/data"}, []),
    ],
)
def test_weights_are_fetched_before_the_engine_starts(given, fetched, monkeypatch):
    calls = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        vllm, "fetch_repository", lambda name, revision, weights: calls.append((name, revision, weights))
    )
    vllm.fetch_weights(given)
    assert calls == fetched


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


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, as vllm is imported

PIECES = [
    *"aeiou 0123=+\n",
    " the",
    " naïve",
    "é",
    "ß",
    "中文",
    "日本語",
    "한국어",
    "🙂",
    "👩‍👩‍👧",
    "\\frac{1}{2}",
    "عربي",
    "�",
]
PROMPT = "What is 1 + 1?\nAnswer:"


def as_vllm(tokenizer, prompt_ids, token_ids):
    """The text after each token, by vLLM's decoder."""
    from vllm import SamplingParams
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    parameters = SamplingParams(skip_special_tokens=False, spaces_between_special_tokens=False)
    request = SimpleNamespace(request_id="0", prompt_token_ids=list(prompt_ids), sampling_params=parameters)
    decoder = FastIncrementalDetokenizer(tokenizer, request)
    for one in token_ids:
        decoder.update([one], False)
        yield decoder.output_text


def texts():
    rng = random.Random(7)
    return ["".join(rng.choices(PIECES, k=12)) for _ in range(2000)]


def test_texts_in_many_scripts_cut_after_each_token(any_tokenizer):
    prompt_ids = any_tokenizer(PROMPT)["input_ids"]
    for text in texts():
        ids = any_tokenizer(text, add_special_tokens=False)["input_ids"]
        for count, wanted in enumerate(as_vllm(any_tokenizer, prompt_ids, ids), start=1):
            assert decode_completion(any_tokenizer, prompt_ids, ids[:count]) == wanted, (text, count)


def test_any_ids_special_ones_beside_each_other_too(any_tokenizer):
    rng, prompt_ids = random.Random(8), any_tokenizer(PROMPT)["input_ids"]
    # a model's ids may go beyond its vocabulary
    every, added = range(len(any_tokenizer) + 3), list(any_tokenizer.added_tokens_decoder)
    for _, kinds in product(range(40), ([every], [every, added], [added])):
        ids = [rng.choice(rng.choice(kinds) or every) for _ in range(20)]
        for count, wanted in enumerate(as_vllm(any_tokenizer, prompt_ids, ids), start=1):
            assert decode_completion(any_tokenizer, prompt_ids, ids[:count]) == wanted, ids[:count]
    assert decode_completion(any_tokenizer, prompt_ids, []) == ""
