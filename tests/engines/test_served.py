import json
import re
import shutil
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain

import pytest

from harness import load_run
from harness.engines import served_model
from harness.engines.completions import Completion
from harness.engines.served_model import ServedModel
from harness.errors import EngineError, ModelError
from harness.experiment.generation_settings import Sampling
from harness.finish_reasons import read_reason
from harness.runs.run_files import RECEIPT, RunFiles
from tests.conftest import succeeded
from tests.engines.test_backends import SERVED, request
from tests.make import TOY_DATA, TOY_MODEL, one_line, table_data, with_cases


class Server(ThreadingHTTPServer):
    """A small server of OpenAI's API. `answer` makes a status and a body from a request's body."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.models = [
            {"id": "tiny", "root": "org/tiny", "owned_by": "test", "max_model_len": 4096}
        ]
        self.posts, self.headers = [], {}
        self.answer = lambda body: (200, completion(f"to {body.get('prompt')}"))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/v1/models":
            self.reply(200, {"data": self.server.models})
        else:
            self.reply(404, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posts.append((self.path, body, self.headers))
        self.reply(*self.server.answer(body))

    def reply(self, status, value):
        data = (value if isinstance(value, str) else json.dumps(value)).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **self.server.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Print no line for each request."""


def completion(text, reason="stop", tokens=7, prompt_tokens=None):
    return {
        "choices": [{"index": 0, "text": text, "finish_reason": reason}],
        "usage": {"completion_tokens": tokens, "prompt_tokens": prompt_tokens},
    }


@pytest.fixture
def server(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with Server() as small_server:
        threading.Thread(target=small_server.serve_forever, args=(0.02,), daemon=True).start()
        yield small_server
        small_server.shutdown()


@pytest.fixture
def pauses(monkeypatch):
    """The pauses before requests are sent again, which the test does not wait for."""
    lengths = []

    async def sleep(seconds):
        lengths.append(seconds)

    monkeypatch.setattr("harness.engines.served_model.asyncio.sleep", sleep)
    return lengths


def opened(server, backend="local-completions", **arguments):
    return closing(ServedModel(backend, {"base_url": server.url, "model": "tiny", **arguments}))


def stream(model, *requests):
    """The completions, as they come."""
    for _, completed in chain.from_iterable(model.stream(requests)):
        yield completed


def ask(server, *requests, backend="local-completions", **arguments):
    """All completions of some requests."""
    with opened(server, backend, **arguments) as model:
        return list(stream(model, *requests))


def complete(server, sampling=None, **arguments):
    """The completion of one request."""
    (completed,) = ask(server, request("p", sampling=sampling or Sampling()), **arguments)
    return completed


def always(value, status=200):
    """An answer of the server that is the same for every request."""
    return lambda _: (status, value)


def number_requests(count):
    return [request(str(number)) for number in range(count)]


def test_hundreds_are_in_flight_and_one_slow_answer_holds_up_none(server):
    released, full = threading.Event(), threading.Event()
    in_flight, counts = [], []

    def answer(body):
        in_flight.append(body)
        counts.append(len(in_flight))
        if len(in_flight) == 200:
            full.set()
        full.wait(60)  # no request is answered before the window is full
        if body["prompt"] == "0":
            released.wait(60)
        in_flight.remove(body)
        return 200, completion(body["prompt"])

    server.answer = answer
    texts = []
    with opened(server, num_concurrent=200) as model:
        for completed in stream(model, *number_requests(500)):
            texts.append(completed.text)
            if len(texts) == 499:
                released.set()
    assert texts[-1] == "0" and sorted(texts, key=int) == [str(number) for number in range(500)]
    assert max(counts) == 200


@with_cases
def test_a_server_gets_the_body_of_its_backend_with_the_key(
    server, monkeypatch, backend, owner, key, arguments, facts, body, text, reason
):
    if key:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    server.models[0]["owned_by"] = owner
    facts["sampling"] = Sampling(**facts.get("sampling", {}))
    server.answer = always(completion("so. END and", "length"))
    (completed,) = ask(server, request("p", **facts), backend=backend, **arguments)
    ((path, sent, headers),) = server.posts
    assert path.removeprefix("/v1/") == served_model.URL_PATH_BY_BACKEND[backend].strip("/")
    assert sent == body
    assert headers.get("Authorization") == (f"Bearer {key}" if key else None)
    assert completed == Completion(text=text, finish_reason=reason, completion_tokens=7)


@pytest.fixture
def run_served(server, command, tmp_path, monkeypatch):
    """Runs the shipped config with four problems and these settings, into the folder `run`."""
    # a look-up of the served name would fail
    monkeypatch.setattr("harness.runs.versions_and_hashes._hub_commit", None)
    arguments = {"tokenizer": TOY_MODEL, "model": "tiny", "base_url": server.url}
    constants = [f"model.model_args.{name}={value}" for name, value in arguments.items()]
    constants += [f"dataset={TOY_DATA}", "repeats=1", "gen_kwargs=greedy", "audit=false"]

    def run(*overrides):
        options = [f"--set={override}" for override in (*constants, *overrides)]
        return command("run", SERVED, *options, "--limit=4", f"--output={tmp_path}/run", "--quiet")

    return run


@with_cases
def test_unfinished_reasoning_of_a_served_model_is_counted(
    server, tmp_path, command, run_served, messages, completions
):
    def answer(_):
        choice = {"message": messages[len(server.posts) - 1], "finish_reason": "stop"}
        return 200, {"choices": [choice]}

    server.answer = answer
    arguments = {"base_url": server.url, "model": "tiny", "num_concurrent": 1}
    model = {"backend": "local-chat-completions", "model_args": arguments}
    overrides = (f"model={json.dumps(model)}", "conditions=[wo]", "primary=null", "replicates=1")
    result = succeeded(run_served(*overrides))
    assert result.stderr.count("No chat template states the markers") == 1
    frame = load_run(tmp_path / "run").sort_values("completion")
    assert frame["completion"].tolist() == completions
    assert (frame["verdict"] == "unfinished").tolist() == [True, False] * 2
    assert frame["answer"].dropna().tolist() == ["1", "1"]
    table = command("table", tmp_path / "run").stdout
    assert "unfinished 50.0 %). Reasoning that has no end does not count as an answer." in one_line(
        table
    )


def test_a_busy_server_is_asked_again_and_an_absent_one_ends_in_one_error(server, pauses, caplog):
    busy = (503, {"error": {"message": "try\nlater"}})
    server.answer = lambda _: busy if len(server.posts) < 3 else (200, completion("x"))
    with opened(server) as model:
        (completed,) = stream(model, request("p"))
        assert completed.text == "x" and len(server.posts) == 3 and pauses == [1, 2]
        server.answer = lambda _: busy
        message = (
            r"no completion of problem \d+ of t and \d\d more: HTTP 503: try later\. "
            "Everything finished is in the j"
        )
        with pytest.raises(EngineError, match=message):
            list(stream(model, *number_requests(50)))
    assert not caplog.records


@with_cases
def test_a_server_that_cannot_be_asked_is_refused_when_it_is_opened(server, name, value, message):
    with pytest.raises(ModelError, match=message):
        opened(server, **{name: value})


def test_the_example_config_runs_in_one_try_and_continues_after_the_server_died(
    server, tmp_path, run_served
):
    def answer(body):
        if len(server.posts) > 12:
            return 400, {"message": "out of order"}
        return 200, completion(r"\boxed{1}")

    server.answer = answer
    stopped = run_served("layouts=[raw]", "model.model_args.num_concurrent=2")
    assert stopped.returncode == 2
    message = stopped.stderr.splitlines()[-1]
    assert "no completion of problem demo/" in message and " and 11 more: HTTP 400: " in message
    server.answer = always(completion(r"\boxed{1}", "length", 3))
    succeeded(run_served("layouts=[raw]"))
    frame = load_run(tmp_path / "run", replicates=True)
    assert len(frame) == 24 and (frame["finish_reason"] == "stop").sum() == 12
    assert set(frame["completion_tokens"]) == {3, 7}


@with_cases
def test_a_fault_under_status_200_is_asked_again_and_costs_only_its_sample(server, pauses, fault):
    server.answer = lambda _: (200, fault if len(server.posts) == 1 else completion("x"))
    completed = complete(server)
    assert completed.text == "x" and pauses == [1]

    def answer(body):
        return 200, fault if body["prompt"] in ("3", "4") else completion(body["prompt"])

    server.answer = answer
    completions = []
    message = r"no completion of problem [34] of t and 1 more: HTTP 200: "
    with opened(server) as model, pytest.raises(EngineError, match=message) as error:
        for completed in stream(model, *number_requests(30)):
            completions.append(completed.text)
    assert sorted(completions, key=int) == [str(n) for n in range(30) if n not in (3, 4)]
    assert str(error.value).count("upstream exploded") == ("upstream" in str(fault))


@with_cases
def test_a_reply_in_any_form_is_a_sample(server, pauses, reply, stop, facts, meaning, posts):
    server.answer = always(reply)
    completed = complete(server, Sampling(stop=tuple(stop)), max_retries=9)
    assert {name: getattr(completed, name) for name in facts} == facts
    assert read_reason(completed.finish_reason) == meaning and len(server.posts) == posts


def test_a_prompt_that_a_filter_refuses_is_a_sample(server):
    error = {"code": "content_filter", "message": "The prompt was filtered."}
    server.answer = always({"error": error}, 400)
    assert complete(server) == Completion(text="", finish_reason="content_filter")


@with_cases
def test_a_pause_is_as_long_as_the_server_asks(headers, seconds):
    assert served_model._read_pause(headers) == seconds


@with_cases
def test_pauses_that_a_server_asks_for_are_not_attempts(server, pauses, status):
    server.headers = {"Retry-After": "7"}
    busy = (status, {"error": {"message": "slow down"}})
    server.answer = lambda _: busy if len(server.posts) < 12 else (200, completion("x"))
    completed = complete(server, max_retries=0)
    assert completed.text == "x" and [round(pause) for pause in pauses] == [7] * 11
    # longer than an answer may take
    server.posts.clear()
    server.answer, server.headers = lambda _: busy, {"Retry-After": "3601"}
    with pytest.raises(EngineError, match="slow down"):
        ask(server, request("p"))
    assert len(server.posts) == 1


@with_cases
def test_the_query_of_an_address_follows_its_path(server, base_url, path):
    ask(server, request("p"), base_url=server.url.removesuffix("/v1") + base_url)
    assert [post[0] for post in server.posts] == [path]


def test_each_message_is_reported_once_and_a_broken_server_is_not_asked_for_ever(server, pauses):
    server.answer = lambda body: (
        400,
        {"message": f"too {'long' if int(body['prompt']) > 2 else 'hot'}"},
    )
    with pytest.raises(EngineError) as error:
        ask(server, *number_requests(300), num_concurrent=1)
    assert len(server.posts) == 20 and not pauses
    text = str(error.value)
    assert "of problem 0 of t and 2 more: HTTP 400: too hot, problem 3 of t and 16 more: " in text
    assert text.count("too long") == 1


@pytest.fixture
def run_raw(run_served, command, tmp_path):
    """Runs two conditions of four problems; returns the result, with the table as one line."""

    def run():
        result = run_served(
            "model.model_args.num_concurrent=1",
            "layouts=[raw]",
            "conditions=[wo,mless]",
            "replicates=1",
        )
        return result, one_line(command("table", tmp_path / "run", "--explain").stdout)

    return run


@with_cases
def test_tokens_that_a_server_adds_to_every_prompt_are_reported(server, run_raw, added, line):
    server.answer = lambda body: (
        200,
        completion("so", prompt_tokens=None if added is None else len(body["prompt"]) + added),
    )
    result, table = run_raw()
    succeeded(result)
    assert ("the server cut" in table or "the server counts" in table) == bool(line)
    assert line in table


def test_a_run_with_cut_prompts_stops_without_them_and_continues_with_the_same_model(
    server, run_raw, tmp_path, command
):
    def answer(body):
        # only prompts with the filler are longer
        return 200, completion("so", prompt_tokens=min(len(body["prompt"]), server.limit))

    server.answer, server.limit = answer, 64
    result, _ = run_raw()
    assert result.returncode == 2
    assert re.search(
        r"The server counts 64 tokens in the prompt of problem \S+ under mless, which has 91\. Its "
        r"count of other prompts differs by \+0, so it cuts",
        result.stderr,
    )
    files = RunFiles(tmp_path / "run")
    assert [sample.task for sample in files.journal.records] == ["demo_wo"]
    server.limit = 4096
    server.models[0]["root"] = "org/other"
    result, _ = run_raw()
    assert result.returncode == 2
    assert 'Changed: served.root: "org/tiny" -> "org/other".' in result.stderr
    server.models[0] |= {"root": "org/tiny", "max_model_len": 8192}
    result, _ = run_raw()
    succeeded(result)
    served = files.receipt["sessions"][-1]["engine"]["served"]
    assert (served["root"], served["max_model_len"]) == ("org/tiny", 8192)
    frame = load_run(tmp_path / "run")
    assert (frame["server_tokens"] == frame["prompt_tokens"]).sum() == 8
    other_run = shutil.copytree(tmp_path / "run", tmp_path / "other")
    receipt = (other_run / RECEIPT).read_text().replace("org/tiny", "org/other")
    (other_run / RECEIPT).write_text(receipt)
    table = command("compare", f"{tmp_path}/run:wo", f"{other_run}:mless").stdout
    assert 'served_root: "org/tiny" -> "org/other"' in one_line(table)


def test_samples_without_a_whole_reply_are_counted_by_condition(
    server, run_raw, command, tmp_path, pauses
):
    def answer(body):
        text, reason = r"\boxed{1}", "stop"
        if server.is_broken or len(body["prompt"]) == 91:
            reason = "network_error"
        if len(body["prompt"]) in (36, 94):
            reason = "SAFETY"
        return 200, completion(text, reason, prompt_tokens=len(body["prompt"]))

    server.answer, server.is_broken = answer, False
    result, table = run_raw()
    succeeded(result)
    assert "completion of the server, which count as not correct: w/o 1, w/ Mless 2." in table
    values = table_data(tmp_path / "run")
    assert [row["no_reply"] for row in values["mediators"]] == [25, 50]
    command("regrade", tmp_path / "run")
    frame = load_run(tmp_path / "run")
    without_reply = frame[frame["verdict"] == "no_reply"]
    assert sorted(without_reply["finish_reason"]) == ["SAFETY", "SAFETY", "network_error"]
    assert not without_reply["correct"].any() and without_reply["answer"].isna().all()
