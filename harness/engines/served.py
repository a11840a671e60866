"""A served model: any server with OpenAI's completions or chat API, such as `vllm serve`.

The server gets hundreds of requests at once, and each completion is given back as it comes. Prompts are sent as the
token ids that were checked, where the model's tokenizer is known.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from harness.engines.vllm import FINISHED, Finished
from harness.engines.watchdog import CONTINUE
from harness.errors import ConfigError, EngineError, ModelError, list_near
from harness.experiment.chat_template import template_switches
from harness.experiment.config import RunConfig
from harness.experiment.prompt import Layout
from harness.experiment.requests import Request

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

PATHS = {"local-completions": "/completions", "local-chat-completions": "/chat/completions"}
"""lm-eval's names of the two APIs, and where each is below the server's address."""

WINDOW = 256
"""Requests in flight, unless `num_concurrent` says otherwise. What a server cannot run at once waits there."""
RETRIES = 3
"""So often a request is sent again after a broken connection or a busy server, unless `max_retries` says otherwise."""
TIMEOUT = 3600.0
"""Seconds that an answer may take, unless `timeout` says otherwise. Under a full window a request waits its turn."""
LOOK_SECONDS = 1.0
"""While no answer comes, the caller gets its turn this often."""
BUSY = (429, 500, 502, 503, 504)
"""Refusals of a server that may answer the same request later."""
QUOTED = 300
"""Characters of a server's own words in a message, at most."""

_REQUIRED = {
    "base_url": "the server's address, such as http://localhost:8000/v1",
    "model": "the name under which the server serves the model (`vllm serve --served-model-name`)",
}
_KNOWN = (
    *_REQUIRED,
    *("tokenizer", "tokenizer_revision", "revision", "trust_remote_code", "max_length", "chat_template_args"),
    *("enable_thinking", "num_concurrent", "max_retries", "timeout", "header", "verify_certificate"),
)
"""Model arguments of a served model, with lm-eval's names and meanings."""


def check_served(config: RunConfig) -> None:
    """Refuse a run config whose server could not be asked.

    Raises:
        ConfigError: the address or the model's name is missing, an argument is unknown, or a chat API would get text.
    """
    arguments = config.model.arguments
    for name, meaning in _REQUIRED.items():
        if not arguments.get(name):
            raise ConfigError(f"model.arguments.{name} is missing: expected {meaning}. See configs/runs/served.yaml.")
    for name in arguments:
        if name not in _KNOWN:
            raise ConfigError(
                f"model.arguments has {name!r}, and a served model has no such argument. Expected one of: "
                f"{list_near(name, _KNOWN)}."
            )
    if Layout.CHAT in config.layouts and not (config.model.templates_itself or arguments.get("tokenizer")):
        raise ConfigError(
            "The layout `chat` of a completions API is rendered here: expected model.arguments.tokenizer, the model's "
            "folder or hub name. Add it, or use `backend: local-chat-completions`."
        )
    if config.sampling == "model_default":
        raise ConfigError(
            "`sampling: model_default` reads the model's generation_config.json, which a server does not show. Use "
            "greedy, or give values such as {temperature: 0.7, top_p: 0.8}."
        )
    if config.model.templates_itself and set(config.layouts) != {Layout.CHAT}:
        raise ConfigError(
            f"The backend {config.model.backend} takes the turns of a chat: expected `layouts: [chat]`, got "
            f"[{', '.join(config.layouts)}]. Change the layouts, or use `backend: local-completions`."
        )


class ServedModel:
    """A served model as a stream of finished completions.

    Args:
        backend: One of `PATHS`.
        arguments: lm-eval's model arguments.

    Raises:
        ModelError: no such server answers, it refuses the key, or it serves other models.
    """

    def __init__(self, backend: str, arguments: Mapping[str, Any]) -> None:
        path, base = PATHS[backend], str(arguments["base_url"]).rstrip("/")
        for known in sorted(PATHS.values(), key=len, reverse=True):  # `/completions` ends both
            base = base.removesuffix(known)
        self._base, self._url, self._model = base, base + path, str(arguments["model"])
        self._window = int(arguments.get("num_concurrent") or WINDOW)
        self._retries = int(arguments.get("max_retries", RETRIES))
        self._timeout = float(arguments.get("timeout") or TIMEOUT)
        self._certificate = arguments.get("verify_certificate", True)
        key = os.environ.get("OPENAI_API_KEY")
        self._headers = arguments.get("header") or ({"Authorization": f"Bearer {key}"} if key else {})
        switches = template_switches(arguments)
        self._fixed = {"chat_template_kwargs": switches} if switches and path == PATHS["local-chat-completions"] else {}
        self._runner = asyncio.Runner()
        try:
            self._session: ClientSession = self._runner.run(self._connect())
            self._served = self._runner.run(self._describe(arguments.get("max_length")))
        except BaseException:
            self.close()
            raise

    def stream(self, requests: Sequence[Request]) -> Iterator[list[tuple[Request, Finished]]]:
        """Generate the requests, begun in their order; yield each completion as it comes, and an empty list at times.

        Raises:
            EngineError: the server refuses a request, or is gone. What had come was yielded before.
        """
        waiting, loop = iter(requests), self._runner.get_loop()
        running: dict[asyncio.Task[Finished], Request] = {}
        try:
            while True:
                for request in islice(waiting, self._window - len(running)):
                    running[loop.create_task(self._ask(request))] = request
                if not running:
                    return
                done, _ = self._runner.run(_first_of(running))
                finished = [(running.pop(task), task) for task in done]
                yield [(request, task.result()) for request, task in finished if task.exception() is None]
                for _, task in finished:
                    task.result()  # raises what it was refused with
        finally:
            self._runner.run(_cancel(running))

    def facts(self) -> dict[str, Any]:
        """What the server says of the model, for the run's receipt; its devices are not known."""
        return {"device": "server", "device_names": None, "served": self._served}

    def close(self) -> None:
        """End all connections."""
        if hasattr(self, "_session"):
            self._runner.run(self._session.close())
        self._runner.close()

    async def _connect(self) -> ClientSession:
        from aiohttp import ClientSession, ClientTimeout, TCPConnector

        connector = TCPConnector(limit=self._window, ssl=bool(self._certificate))
        timeout = ClientTimeout(total=self._timeout, sock_connect=30)
        return ClientSession(connector=connector, timeout=timeout, headers=self._headers)

    async def _describe(self, length: Any) -> dict[str, Any] | None:
        """What the server's list of models says of this one; None if it has no such list."""
        url = f"{self._base}/models"
        try:
            async with self._session.get(url) as answer:
                status, body = answer.status, await _read(answer)
        except _connection_errors() as error:
            raise ModelError(
                f"No server answers at {self._base}: {_describe_error(error)}. Expected an OpenAI-compatible API. "
                "Start it (`vllm serve MODEL --port 8000`), or correct model.arguments.base_url."
            ) from error
        if status in (401, 403):
            raise ModelError(f"The server at {self._base} refuses the key (HTTP {status}). Set OPENAI_API_KEY.")
        known = body.get("data") if isinstance(body, dict) and status == 200 else None
        if not isinstance(known, list):
            return None
        models = {one["id"]: one for one in known if isinstance(one, dict) and "id" in one}
        if self._model not in models:
            raise ModelError(
                f"The server at {self._base} has no model {self._model!r}: it serves {', '.join(models) or 'none'}. "
                "Correct model.arguments.model."
            )
        own = models[self._model].get("max_model_len")
        if length is not None and own is not None and int(length) > own:
            raise ModelError(
                f"The server's context is {own} tokens, and model.arguments.max_length is {length}. Lower it, or serve "
                "the model with a longer one (--max-model-len)."
            )
        return {name: models[self._model].get(name) for name in ("id", "root", "owned_by", "max_model_len")}

    async def _ask(self, request: Request) -> Finished:
        for attempt in count(1):
            try:
                async with self._session.post(self._url, json=self._payload(request)) as answer:
                    status, body = answer.status, await _read(answer)
                failed = f"HTTP {status}: {_words(body)}"
                if status == 200:
                    return _finish(body, failed)
            except _connection_errors() as error:
                status, failed = BUSY[0], _describe_error(error)
            if status not in BUSY:
                raise EngineError(
                    f"The server at {self._base} refuses problem {request.problem_id} of {request.task}: {failed}. "
                    f"Mend the cause. {CONTINUE}"
                )
            if attempt > self._retries:
                raise EngineError(f"The server at {self._base} is gone or busy: {failed}. {CONTINUE}")
            await asyncio.sleep(2 ** (attempt - 1))
        raise AssertionError("unreachable")

    def _payload(self, request: Request) -> dict[str, Any]:
        """The request as the API takes it.

        vLLM's server is told all, as it fills in what is left out from the model's generation_config.json. Other
        servers may not know what is not OpenAI's, so what is switched off is left out.
        """
        sampling = request.sampling.openai()
        if (self._served or {}).get("owned_by") == "vllm":  # special tokens are kept, as by our own engine
            kept = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
            sampling = {**request.sampling.vllm(), **kept}
        seed = {} if request.seed is None else {"seed": request.seed}
        values = {"model": self._model, **sampling, **seed}
        if request.turns is not None:
            return {**values, "messages": list(request.turns), **self._fixed}
        ids = request.prompt_token_ids
        return {**values, "prompt": request.prompt if ids is None else list(ids)}


async def _first_of(running: Mapping[asyncio.Task[Finished], Request]) -> tuple[set[asyncio.Task[Finished]], Any]:
    """The tasks that have ended, as soon as one has."""
    return await asyncio.wait(running, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)


async def _cancel(running: Mapping[asyncio.Task[Finished], Request]) -> None:
    """End the tasks, and take what they raise: one refusal is told, not hundreds."""
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def _read(answer: ClientResponse) -> Any:
    """The answer as JSON, or as the text it is."""
    text = (await answer.read()).decode("utf-8", "replace")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _finish(body: Any, said: str) -> Finished:
    """The completion that an answer holds."""
    try:
        (choice,) = body["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        reason, usage = choice.get("finish_reason"), body.get("usage") or {}
        tokens = usage.get("completion_tokens")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"The server's answer holds no completion: {said}. Expected OpenAI's format.") from error
    return Finished(text=text or "", completion_tokens=tokens, finish_reason=reason if reason in FINISHED else None)


def _words(body: Any) -> str:
    """What a server says, in its own words, on one line."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    message = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join(str(message).split())[:QUOTED].rstrip(".")


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__} {' '.join(str(error).split())[:QUOTED]}".rstrip(". ")


def _connection_errors() -> tuple[type[Exception], ...]:
    from aiohttp import ClientError

    return ClientError, TimeoutError
