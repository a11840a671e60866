"""A served model: any server with OpenAI's completions or chat API, such as `vllm serve`.

The server gets hundreds of requests at once, and completions are returned as they come. Prompts are
sent as the token ids that were checked, where the model's tokenizer is known.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from harness.constants import JsonObject
from harness.engines.completions import FINISH_REASONS, Completion, FinishedRequests
from harness.engines.engine_processes import CONTINUE, ENGINE_TURN_SECONDS, quote
from harness.errors import ConfigError, EngineError, ModelError, list_near
from harness.experiment.chat_template import template_switches
from harness.experiment.plan import Request
from harness.experiment.prompt import Layout
from harness.experiment.run_config import RunConfig

if TYPE_CHECKING:
    from aiohttp import ClientSession

SERVED_WINDOW = 256
"""The default of `num_concurrent`: requests in flight at a server. It queues those that it cannot
run at once."""
SERVED_RETRIES = 3
"""The default of `max_retries`: how often a request is sent again to a busy or broken server."""
SERVED_TIMEOUT = 3600.0
"""The default of `timeout`: seconds that an answer may take, with the time in the server's
queue."""
SERVED_BUSY = (429, 500, 502, 503, 504)
"""Status codes of a server that may answer the same request later."""
SERVED_CONNECT_SECONDS = 30.0
"""Seconds that a connection may take."""

PATHS = {"local-completions": "/completions", "local-chat-completions": "/chat/completions"}
"""lm-eval's names of the two APIs, and their paths below the server's address."""

_LIMITS = ("num_concurrent", "max_retries", "timeout")
_ARGUMENTS = (
    "base_url",
    "model",
    "tokenizer",
    "tokenizer_revision",
    "revision",
    "trust_remote_code",
    "max_length",
    "chat_template_args",
    "enable_thinking",
    *_LIMITS,
    "header",
)
"""Model arguments of a served model, with lm-eval's names and meanings."""


def check_served(config: RunConfig) -> None:
    """Refuse a run config whose server could not be used.

    Raises:
        ConfigError: the address or the model's name is missing, an argument is unknown, or a chat
            API would get text.
    """
    problem = next(_find_problems(config), None)
    if problem:
        raise ConfigError(
            f"model.backend {config.model.backend}: {problem}. See configs/runs/served.yaml."
        )


def _find_problems(config: RunConfig) -> Iterator[str]:
    arguments, layouts = config.model.model_args, config.layouts
    takes_turns = config.model.templates_itself
    for name in ("base_url", "model"):
        if not arguments.get(name):
            yield f"model.model_args.{name} is missing"
    for name in arguments:
        if name not in _ARGUMENTS:
            yield f"no argument {name!r}, near it: {list_near(name, _ARGUMENTS)}"
    for name in _LIMITS:
        value = arguments.get(name, 0)
        if not isinstance(value, int | float) or value < 0:
            yield f"model.model_args.{name} is {value!r}, no number from 0 on"
    if config.gen_kwargs == "model_default":
        yield (
            "`gen_kwargs: model_default` is in the model's own files, which a server does not show"
        )
    if takes_turns and set(layouts) - {Layout.CHAT}:
        yield f"expected `layouts: [chat]`, as it takes turns, got [{', '.join(layouts)}]"
    if Layout.CHAT in layouts and not takes_turns and not arguments.get("tokenizer"):
        yield (
            "the layout `chat` is rendered here, with model.model_args.tokenizer, which is missing"
        )


class ServedModel:
    """A served model as a stream of finished completions.

    Args:
        backend: A name in `PATHS`.
        arguments: lm-eval's model arguments.

    Raises:
        ModelError: no such server answers, or it serves other models.
    """

    def __init__(self, backend: str, arguments: Mapping[str, Any]) -> None:
        self._base = str(arguments["base_url"]).rstrip("/")
        for path in sorted(PATHS.values(), key=len, reverse=True):  # `/completions` ends both
            self._base = self._base.removesuffix(path)
        self._url = self._base + PATHS[backend]
        self._model = str(arguments["model"])
        self._window = int(arguments.get("num_concurrent") or SERVED_WINDOW)
        self._retries = int(arguments.get("max_retries", SERVED_RETRIES))
        self._timeout = float(arguments.get("timeout") or SERVED_TIMEOUT)
        self._headers = arguments.get("header")
        if not self._headers and (key := os.environ.get("OPENAI_API_KEY")):
            self._headers = {"Authorization": f"Bearer {key}"}
        self._template_switches = template_switches(arguments)
        self._runner = asyncio.Runner()
        try:
            self._session: ClientSession = self._runner.run(self._connect())
            self._served = self._runner.run(self._describe())
        except BaseException:  # Ctrl-C must close the connections too
            self.close()
            raise

    def stream(self, requests: Sequence[Request]) -> Iterator[FinishedRequests]:
        """Generate the requests in their order; yield completions as they come, or an empty list.

        Raises:
            EngineError: the server refuses a request, or is gone. Earlier completions were yielded.
        """
        waiting, loop = iter(requests), self._runner.get_loop()
        running: dict[asyncio.Task[Completion], Request] = {}
        try:
            while True:
                for request in islice(waiting, self._window - len(running)):
                    running[loop.create_task(self._generate(request))] = request
                if not running:
                    return
                finished, _ = self._runner.run(
                    asyncio.wait(
                        running, timeout=ENGINE_TURN_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
                )
                requests_by_task = {task: running.pop(task) for task in finished}
                yield [
                    (request, task.result())
                    for task, request in requests_by_task.items()
                    if task.exception() is None
                ]
                for task in finished:
                    task.result()  # raises the error of a refused request
        finally:
            # also after an error or an interruption, so that the server does not go on generating
            self._runner.run(_cancel(running))

    def facts(self) -> JsonObject:
        """The server's description of the model, for the run's receipt; its devices are unknown."""
        return {"device": "server", "device_names": None, "served": self._served}

    def close(self) -> None:
        """End all connections."""
        if hasattr(self, "_session"):
            self._runner.run(self._session.close())
        self._runner.close()

    async def _connect(self) -> ClientSession:
        from aiohttp import ClientSession, ClientTimeout, TCPConnector

        timeout = ClientTimeout(total=self._timeout, sock_connect=SERVED_CONNECT_SECONDS)
        return ClientSession(
            connector=TCPConnector(limit=self._window), timeout=timeout, headers=self._headers
        )

    async def _describe(self) -> JsonObject | None:
        """This model in the server's list of models; None if the server has no such list."""
        status, body = await self._read("GET", f"{self._base}/models")
        if not status:
            raise ModelError(
                f"No server answers at model.model_args.base_url {self._base}: {_message(body)}."
            )
        models = body.get("data") if isinstance(body, dict) and status == 200 else None
        if not isinstance(models, list):
            return None
        names = []
        for model in models:
            if isinstance(model, dict) and "id" in model:
                names.append(model["id"])
                if model["id"] == self._model:
                    fields = ("id", "root", "owned_by", "max_model_len")
                    return {field: model.get(field) for field in fields}
        served = ", ".join(names) if names else "none"
        raise ModelError(
            f"The server at {self._base} has no model {self._model!r} (model.model_args.model): it "
            f"serves {served}."
        )

    async def _generate(self, request: Request) -> Completion:
        for attempt in range(self._retries + 1):
            if attempt:
                # 1, 2 and 4 seconds
                await asyncio.sleep(2 ** (attempt - 1))
            status, body = await self._read("POST", self._url, json=self._payload(request))
            if status == 200 and (completion := _read_completion(body)):
                return completion
            if status and status not in SERVED_BUSY:
                break
        code = f"HTTP {status}: " if status else ""
        raise EngineError(
            f"The server at {self._base} gives no completion of problem {request.problem_id} of "
            f"{request.task}: {code}{_message(body)}. {CONTINUE}"
        )

    async def _read(self, method: str, url: str, **options: Any) -> tuple[int, Any]:
        """The status of an answer, and its JSON or text; 0 and the error if no answer comes."""
        from aiohttp import ClientError

        try:
            async with self._session.request(method, url, **options) as answer:
                status, text = answer.status, (await answer.read()).decode("utf-8", "replace")
        except (ClientError, TimeoutError) as error:
            return 0, f"{type(error).__name__} {error}"
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def _payload(self, request: Request) -> JsonObject:
        """The request as the API takes it.

        vLLM's server gets all parameters: it would take missing ones from the model's
        generation_config.json. Other servers may not know parameters that OpenAI has not, so those
        without an effect are left out.
        """
        values = {"model": self._model, **request.sampling.openai()}
        if self._served and self._served["owned_by"] == "vllm":
            values |= request.sampling.vllm()
            # as from our own engine
            values |= {"skip_special_tokens": False, "spaces_between_special_tokens": False}
        if request.seed is not None:
            values["seed"] = request.seed
        if request.turns is None:
            return {**values, "prompt": request.prompt_token_ids or request.prompt}
        if self._template_switches:
            values["chat_template_kwargs"] = self._template_switches
        return {**values, "messages": request.turns}


async def _cancel(tasks: Iterable[asyncio.Task[Completion]]) -> None:
    """End the tasks without their errors: a single refusal is reported, not hundreds."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _read_completion(body: Any) -> Completion | None:
    """The completion in an answer of OpenAI's format; None if the answer has another format."""
    try:
        (choice,) = body["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        reason = choice.get("finish_reason")
        tokens = (body.get("usage") or {}).get("completion_tokens")
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    if not isinstance(text, str | None) or not isinstance(tokens, int | None):
        return None
    if reason not in FINISH_REASONS:
        reason = None
    return Completion(text=text or "", completion_tokens=tokens, finish_reason=reason)


def _message(body: Any) -> str:
    """A server's own message, on one line."""
    for key in ("error", "message"):
        if isinstance(body, dict):
            body = body.get(key, body)
    return quote(body).rstrip(". ")
