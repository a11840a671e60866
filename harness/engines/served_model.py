"""A served model: any server with OpenAI's completions or chat API, such as `vllm serve`.

The server gets hundreds of requests at once, and each completion is given back as it comes. Prompts are sent as the
token ids that were checked, where the model's tokenizer is known.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Any

from harness.engines.engine_processes import CONTINUE, ENGINE_TURN_SECONDS
from harness.engines.vllm_engine import FINISHED, Finished
from harness.errors import QUOTED_CHARACTERS, ConfigError, EngineError, ModelError, list_near
from harness.experiment.plan import Request
from harness.experiment.prompt import Layout
from harness.experiment.run_config import RunConfig
from harness.experiment.tokenizer import template_switches

if TYPE_CHECKING:
    from aiohttp import ClientSession

SERVED_WINDOW = 256
"""Requests in flight at a server, unless `num_concurrent` says otherwise. What it cannot run at once waits there."""
SERVED_RETRIES = 3
"""So often a request is sent again to a busy or broken server, unless `max_retries` says otherwise."""
SERVED_TIMEOUT = 3600.0
"""Seconds that an answer may take, unless `timeout` says otherwise. Under a full window a request waits its turn."""
SERVED_BUSY = (429, 500, 502, 503, 504)
"""Status codes of a server that may answer the same request later."""
SERVED_CONNECT_SECONDS = 30.0
"""A connection may take this long."""

PATHS = {"local-completions": "/completions", "local-chat-completions": "/chat/completions"}
"""lm-eval's names of the two APIs, and where each is below the server's address."""

_KNOWN = (
    *(
        "base_url",
        "model",
        "tokenizer",
        "tokenizer_revision",
        "revision",
        "trust_remote_code",
        "max_length",
    ),
    *(
        "chat_template_args",
        "enable_thinking",
        "num_concurrent",
        "max_retries",
        "timeout",
        "header",
    ),
)
"""Model arguments of a served model, with lm-eval's names and meanings."""


def check_served(config: RunConfig) -> None:
    """Refuse a run config whose server could not be asked.

    Raises:
        ConfigError: the address or the model's name is missing, an argument is unknown, or a chat API would get text.
    """
    arguments, backend, layouts = config.model.model_args, config.model.backend, config.layouts
    chat = Layout.CHAT
    wrong = [
        f"model.model_args.{name} is missing"
        for name in ("base_url", "model")
        if not arguments.get(name)
    ]
    wrong += [
        f"no argument {name!r}, near it: {list_near(name, _KNOWN)}"
        for name in arguments
        if name not in _KNOWN
    ]
    for name in ("num_concurrent", "max_retries", "timeout"):
        if not isinstance(value := arguments.get(name, 0), int | float) or value < 0:
            wrong.append(f"model.model_args.{name} is {value!r}, no number from 0 on")
    if config.gen_kwargs == "model_default":
        wrong.append(
            "`gen_kwargs: model_default` is in the model's own files, which a server does not show"
        )
    if config.model.templates_itself and {*layouts, chat} != {chat}:
        wrong.append(f"expected `layouts: [chat]`, as it takes turns, got [{', '.join(layouts)}]")
    if chat in layouts and not (config.model.templates_itself or arguments.get("tokenizer")):
        wrong.append(
            "the layout `chat` is rendered here, with model.model_args.tokenizer, which is missing"
        )
    if wrong:
        raise ConfigError(f"model.backend {backend}: {wrong[0]}. See configs/runs/served.yaml.")


class ServedModel:
    """A served model as a stream of finished completions.

    Args:
        backend: One of `PATHS`.
        arguments: lm-eval's model arguments.

    Raises:
        ModelError: no such server answers, or it serves other models.
    """

    def __init__(self, backend: str, arguments: Mapping[str, Any]) -> None:
        path, base = PATHS[backend], str(arguments["base_url"]).rstrip("/")
        for known in sorted(PATHS.values(), key=len, reverse=True):  # `/completions` ends both
            base = base.removesuffix(known)
        self._base, self._url, self._model = base, base + path, str(arguments["model"])
        self._window = int(arguments.get("num_concurrent") or SERVED_WINDOW)
        self._retries = int(arguments.get("max_retries", SERVED_RETRIES))
        self._timeout = float(arguments.get("timeout") or SERVED_TIMEOUT)
        key = os.environ.get("OPENAI_API_KEY")
        self._headers = arguments.get("header") or (
            {"Authorization": f"Bearer {key}"} if key else {}
        )
        switches = template_switches(arguments)
        self._fixed = (
            {"chat_template_kwargs": switches}
            if switches and path == PATHS["local-chat-completions"]
            else {}
        )
        self._runner = asyncio.Runner()
        with ExitStack() as opened:  # whatever happens, an interruption too
            opened.callback(self.close)
            self._session: ClientSession = self._runner.run(self._connect())
            self._served = self._runner.run(self._describe())
            opened.pop_all()

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
                done, _ = self._runner.run(
                    asyncio.wait(
                        running, timeout=ENGINE_TURN_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
                )
                finished = [(running.pop(task), task) for task in done]
                yield [
                    (request, task.result())
                    for request, task in finished
                    if task.exception() is None
                ]
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

        timeout = ClientTimeout(total=self._timeout, sock_connect=SERVED_CONNECT_SECONDS)
        return ClientSession(
            connector=TCPConnector(limit=self._window), timeout=timeout, headers=self._headers
        )

    async def _describe(self) -> dict[str, Any] | None:
        """What the server's list of models says of this one; None if it has no such list."""
        status, body = await self._read("GET", f"{self._base}/models")
        if not status:
            raise ModelError(
                f"No server answers at model.model_args.base_url {self._base}: {_words(body)}."
            )
        known = body.get("data") if isinstance(body, dict) and status == 200 else None
        if not isinstance(known, list):
            return None
        models = {one["id"]: one for one in known if isinstance(one, dict) and "id" in one}
        if self._model not in models:
            served = ", ".join(models) or "none"
            raise ModelError(
                f"The server at {self._base} has no model {self._model!r} (model.model_args.model): it serves {served}."
            )
        return {
            name: models[self._model].get(name)
            for name in ("id", "root", "owned_by", "max_model_len")
        }

    async def _ask(self, request: Request) -> Finished:
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(2 ** (attempt - 1))
            status, body = await self._read("POST", self._url, json=self._payload(request))
            if status == 200 and (finished := _read_completion(body)):
                return finished
            if status and status not in SERVED_BUSY:
                break
        raise EngineError(
            f"The server at {self._base} gives no completion of problem {request.problem_id} of {request.task}: "
            f"{f'HTTP {status}: ' if status else ''}{_words(body)}. {CONTINUE}"
        )

    async def _read(self, method: str, url: str, **options: Any) -> tuple[int, Any]:
        """The status of an answer, and its JSON, or the text that it is; 0 and the error where none comes."""
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

    def _payload(self, request: Request) -> dict[str, Any]:
        """The request as the API takes it.

        vLLM's server is told all, as it fills in what is left out from the model's generation_config.json. Other
        servers may not know what is not OpenAI's, so what is switched off is left out.
        """
        values = {"model": self._model, **request.sampling.openai()}
        if (self._served or {}).get(
            "owned_by"
        ) == "vllm":  # special tokens are kept, as by our own engine
            values |= request.sampling.vllm()
            values |= {"skip_special_tokens": False, "spaces_between_special_tokens": False}
        if request.seed is not None:
            values["seed"] = request.seed
        if request.turns is not None:
            return {**values, "messages": request.turns, **self._fixed}
        return {**values, "prompt": request.prompt_token_ids or request.prompt}


async def _cancel(running: Mapping[asyncio.Task[Finished], Request]) -> None:
    """End the tasks, and take what they raise: one refusal is told, not hundreds."""
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def _read_completion(body: Any) -> Finished | None:
    """The completion that an answer in OpenAI's format holds."""
    try:
        (choice,) = body["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        reason, tokens = (
            choice.get("finish_reason"),
            (body.get("usage") or {}).get("completion_tokens"),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    if not isinstance(text, str | None) or not isinstance(tokens, int | None):
        return None
    return Finished(
        text=text or "",
        completion_tokens=tokens,
        finish_reason=reason if reason in FINISHED else None,
    )


def _words(body: Any) -> str:
    """What a server says, in its own words, on one line."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    message = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join(str(message).split())[:QUOTED_CHARACTERS].rstrip(". ")
