import json
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness import load_run
from harness.engines.served_model import ServedModel
from harness.errors import EngineError, ModelError
from harness.experiment.generation_settings import Sampling
from tests.commands.test_cli import here
from tests.engines.test_backends import SERVED, request
from tests.make import TOY_DATA, TOY_MODEL


class Server(ThreadingHTTPServer):
    """A small server of OpenAI's API. `answer` gets each request's body and returns a status and a body."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.models = [
            {"id": "tiny", "root": "org/tiny", "owned_by": "test", "max_model_len": 4096}
        ]
        self.asked, self.headers, self.now, self.most, self.lock = [], [], 0, 0, threading.Lock()
        self.answer = lambda body: (200, completion(f"to {body.get('prompt')}"))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.reply(200, {"data": self.server.models}) if self.path == "/v1/models" else self.reply(
            404, {}
        )

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.asked.append((self.path, body))
            server.headers.append(self.headers)
            server.now += 1
            server.most = max(server.most, server.now)
        status, answer = server.answer(body)
        with server.lock:
            server.now -= 1
        self.reply(status, answer)

    def reply(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Say nothing."""


def completion(text, reason="stop", tokens=7):
    return {
        "choices": [{"index": 0, "text": text, "finish_reason": reason}],
        "usage": {"completion_tokens": tokens},
    }


@pytest.fixture
def server(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with Server() as small_server:
        threading.Thread(target=small_server.serve_forever, args=(0.02,), daemon=True).start()
        yield small_server
        small_server.shutdown()


def opened(server, backend="local-completions", **arguments):
    return closing(ServedModel(backend, {"base_url": server.url, "model": "tiny", **arguments}))


def test_hundreds_are_in_flight_and_one_slow_answer_holds_up_none(server):
    released, full = threading.Event(), threading.Event()

    def answer(body):
        if server.most >= 200:
            full.set()
        full.wait(60)  # no one is answered before the window is full
        if body["prompt"] == "0":
            released.wait(60)
        return 200, completion(body["prompt"])

    server.answer = answer
    came = []
    with opened(server, num_concurrent=200) as model:
        for finished in model.stream([request(str(number)) for number in range(500)]):
            came += [completed.text for _, completed in finished]
            if len(came) == 499:
                released.set()
    assert came[-1] == "0" and sorted(came, key=int) == [str(number) for number in range(500)]
    assert server.most == 200


def test_the_server_gets_the_checked_tokens_the_seed_and_the_sampling(server):
    sampling = Sampling(source="explicit", temperature=0.7, top_p=0.9, max_tokens=33, stop=("END",))
    with opened(server) as model:
        ((_, completed),) = [
            pair
            for finished in model.stream(
                [request("p", prompt_token_ids=(5, 6), seed=9, sampling=sampling)]
            )
            for pair in finished
        ]
        facts = model.facts()
        server.models[0]["owned_by"] = "vllm"
    with opened(server) as model:
        list(model.stream([request("p")]))
    (path, body), (_, vllm_body) = server.asked
    assert (vllm_body["prompt"], vllm_body["top_k"], vllm_body["repetition_penalty"]) == (
        "p",
        0,
        1.0,
    ), "else vLLM's are the model's"
    assert vllm_body["skip_special_tokens"] is False and "seed" not in vllm_body
    assert path == "/v1/completions" and body == {
        **{"model": "tiny", "prompt": [5, 6], "seed": 9, "stop": ["END"]},
        **{"temperature": 0.7, "top_p": 0.9, "max_tokens": 33},
    }
    assert (completed.text, completed.finish_reason, completed.completion_tokens) == (
        "to [5, 6]",
        "stop",
        7,
    )
    assert facts["served"]["root"] == "org/tiny" and "Authorization" not in server.headers[0]


def test_a_chat_server_gets_the_turns_the_template_switches_and_the_key(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    server.answer = lambda _: (
        200,
        {"choices": [{"message": {"content": None}, "finish_reason": "length"}]},
    )
    turns = ({"role": "user", "content": "a"},)
    arguments = {
        "base_url": f"{server.url}/chat/completions/",
        "chat_template_args": {"enable_thinking": False},
    }
    with opened(server, "local-chat-completions", **arguments) as model:
        ((_, completed),) = [
            pair for finished in model.stream([request("p", turns=turns)]) for pair in finished
        ]
    (path, body), *_ = server.asked
    assert path == "/v1/chat/completions" and body["messages"] == list(turns)
    assert body["chat_template_kwargs"] == {"enable_thinking": False} and "prompt" not in body
    assert (completed.text, completed.finish_reason, completed.completion_tokens) == (
        "",
        "length",
        None,
    )
    assert server.headers[0]["Authorization"] == "Bearer sesame"


def test_a_busy_server_is_asked_again_and_a_gone_one_ends_in_one_error(server, monkeypatch, caplog):
    slept = []

    async def quick(seconds):
        slept.append(seconds)

    monkeypatch.setattr("harness.engines.served_model.asyncio.sleep", quick)
    server.answer = lambda _: (
        (503, {"error": {"message": "try\nlater"}})
        if len(server.asked) < 3
        else (200, completion("x"))
    )
    with opened(server) as model:
        assert [
            completed.text for finished in model.stream([request("p")]) for _, completed in finished
        ] == ["x"]
        assert len(server.asked) == 3 and slept == [1, 2]
        server.answer = lambda _: (503, {"error": {"message": "try\nlater"}})
        with pytest.raises(
            EngineError, match=r" of t: HTTP 503: try later\. Everything finished is in the j"
        ):
            list(model.stream([request(str(number)) for number in range(50)]))
    assert not caplog.records


def test_what_came_before_a_refusal_is_kept_and_the_refusal_has_the_servers_words(server):
    def answer(body):
        if body["prompt"] == "bad":
            time.sleep(1)
            return 400, {"error": {"message": "too long by 3 tokens."}}
        return 200, completion(body["prompt"])

    server.answer = answer
    came = []
    message = (
        r"no completion of problem bad of t: HTTP 400: too long by 3 tokens\. "
        "Everything finished is in the journal"
    )
    with opened(server) as model, pytest.raises(EngineError, match=message):
        for finished in model.stream(
            [request("bad"), *(request(str(number)) for number in range(20))]
        ):
            came += [completed.text for _, completed in finished]
    assert len(came) == 20
    server.answer = lambda _: (200, {"object": "error"})
    with opened(server) as model, pytest.raises(EngineError, match="of problem p of t: HTTP 200: "):
        list(model.stream([request("p")]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "tinny"}, "has no model 'tinny' .* it serves tiny"),
        (
            {"base_url": "http://127.0.0.1:9/v1/completions"},
            r"No server answers at .*127\.0\.0\.1:9/v1: Client",
        ),
    ],
)
def test_a_server_that_cannot_be_asked_is_refused_when_it_is_opened(server, arguments, message):
    with pytest.raises(ModelError, match=message):
        opened(server, **arguments)


def test_the_example_config_runs_in_one_try_and_goes_on_after_the_server_died(
    server, tmp_path, capsys, monkeypatch
):
    def answer(body):
        assert body["prompt"][:3] and all(isinstance(token, int) for token in body["prompt"])
        return (
            (400, {"message": "out of order"})
            if len(server.asked) > 12
            else (200, completion(r"\boxed{1}"))
        )

    server.answer = answer
    monkeypatch.setattr(
        "harness.runs.versions_and_hashes._hub_commit", None
    )  # a look-up of the served name would fail
    sets = [
        f"dataset={TOY_DATA}",
        "repeats=1",
        "gen_kwargs=greedy",
        f"model.model_args.tokenizer={TOY_MODEL}",
    ]
    sets += [
        "model.model_args.model=tiny",
        f"model.model_args.base_url={server.url}",
        "layouts=[raw]",
    ]
    arguments = [argument for override in sets for argument in ("--set", override)]
    arguments += ["--limit", "4", "--output", str(tmp_path / "run"), "--quiet"]
    stopped = here(
        capsys,
        monkeypatch,
        "run",
        str(SERVED),
        *arguments,
        "--set",
        "model.model_args.num_concurrent=2",
    )
    assert (
        stopped.returncode == 2
        and "no completion of problem demo/" in stopped.stderr.splitlines()[-1]
    )
    server.answer = lambda _: (200, completion(r"\boxed{1}", "length", 3))
    continued = here(capsys, monkeypatch, "run", str(SERVED), *arguments)
    assert continued.returncode == 0, continued.stderr
    frame = load_run(tmp_path / "run", replicates=True)
    assert len(frame) == 24 and 1 <= (frame["finish_reason"] == "stop").sum() == 12
    assert set(frame["completion_tokens"]) == {3, 7}
