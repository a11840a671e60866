"""A served model: any server with OpenAI's completions or chat API, such as `vllm serve`.

The server gets hundreds of requests at once, and completions are returned as they come. Prompts are
sent as the token ids that were checked, where the model's tokenizer is known.
"""

import asyncio
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from harness.constants import JsonObject
from harness.engines.completions import DECODING_ARGUMENTS, Completion, FinishedRequests
from harness.engines.engine_processes import CONTINUE_ADVICE, POLL_SECONDS
from harness.engines.server_replies import describe_error, read_reply
from harness.errors import ConfigError, EngineError, ModelError, list_first
from harness.experiment.plan import Request
from harness.experiment.prompts.chat_template import template_switches
from harness.experiment.prompts.prompt import Layout
from harness.experiment.run_config import RunConfig
from harness.finish_reasons import read_reason
from harness.yaml_settings import Strict, validate

RETRIED_STATUSES = (0, 200, 408, 425, 429, 500, 502, 503, 504, *range(520, 530))
"""Status codes after which a request is sent again if its completion is missing or incomplete. 0
stands for no reply. Gateways send some errors and pages with 200. Cloudflare and Anthropic use the
codes from 520 on."""
MOST_INCOMPLETE_RETRIES = 3
"""How often a request is sent again after an incomplete completion. If the last completion is
incomplete too, its sample has no verdict."""
MOST_FAILURES_IN_A_ROW = 20
"""Samples in a row without a completion after which the server counts as broken."""
CONNECT_LIMIT_SECONDS = 30.0
"""Seconds that a connection may take."""

URL_PATH_BY_BACKEND = {
    "local-completions": "/completions",
    "local-chat-completions": "/chat/completions",
}
"""The path of each of lm-eval's two APIs below the server's address."""


ServerCall = asyncio.Task[Completion]
"""A running `ServedModel._generate`: all attempts to get the completion of one request."""


class ServerArguments(Strict):
    """Model arguments of a served model, with lm-eval's names and meanings."""

    base_url: str
    """The server's address, such as `http://localhost:8000/v1`."""
    model: str
    """The name under which the server has the model."""
    tokenizer: str | None = None
    """The tokenizer: a hub name or a folder. Prompts are then checked, and sent as tokens."""
    tokenizer_revision: str | None = None
    """The tokenizer's revision on the hub."""
    revision: str | None = None
    """The tokenizer's revision, under the name that local models have for theirs."""
    trust_remote_code: bool = False
    """The tokenizer may run its own code."""
    max_length: int | None = None
    """The server's context, in tokens."""
    chat_template: str | None = None
    """A chat template instead of the tokenizer's."""
    chat_template_args: dict[str, Any] | None = None
    """Arguments of the chat template."""
    enable_thinking: bool | None = None
    """The switch of this name in the chat template."""
    num_concurrent: PositiveInt = 256
    """Requests in flight. The server queues those that it cannot run at once."""
    max_retries: NonNegativeInt = 3
    """How often a request is sent again to a busy or broken server."""
    timeout: PositiveFloat = 3600.0
    """Seconds that an answer may take, with the time in the server's queue, and that the server may
    ask to wait without an answer to any request."""
    header: dict[str, str] | None = None
    """Headers of each request; a key goes into OPENAI_API_KEY."""
    max_tokens_name: str = "max_tokens"
    """The parameter that limits a completion; newer APIs have another name for it."""
    omit: tuple[Literal["stop", "temperature", "top_p", "seed"], ...] = ()
    """Parameters that the server refuses."""


def check_served(config: RunConfig) -> None:
    """Refuse a run config whose server could not be used.

    Raises:
        ConfigError: the address or the model's name is missing, an argument is unknown, or a chat
            API would get text.
    """
    arguments = validate(ServerArguments, config.model.model_args, "model.model_args")
    if fault := _find_fault(config, arguments.tokenizer):
        raise ConfigError(
            f"model.backend {config.model.backend}: {fault}. See configs/runs/served.yaml."
        )


def _find_fault(config: RunConfig, tokenizer: str | None) -> str:
    """The reason why no server can be used with a config; empty if there is none."""
    if config.gen_kwargs == "model_default":
        return (
            "`gen_kwargs: model_default` is in the model's own files, which a server does not show"
        )
    layouts = config.layouts
    # a chat API gets turns, of which the server makes a prompt with its own template
    if config.model.applies_own_template:
        if set(layouts) - {Layout.CHAT}:
            return f"expected `layouts: [chat]`, as it takes turns, got [{', '.join(layouts)}]"
    elif Layout.CHAT in layouts and not tokenizer:
        return (
            "the layout `chat` is rendered here, with model.model_args.tokenizer, which is missing"
        )
    return ""


class ServedModel:
    """A served model as a stream of finished completions.

    Args:
        backend: A key of `URL_PATH_BY_BACKEND`.
        arguments: lm-eval's model arguments.

    Raises:
        ModelError: no such server answers, or it serves other models.
    """

    def __init__(self, backend: str, arguments: Mapping[str, Any]) -> None:
        self._arguments = validate(ServerArguments, arguments, "model.model_args")
        url, question_mark, query = self._arguments.base_url.partition("?")
        # lm-eval's configs have the full address of the API
        self._base_url = url.rstrip("/").removesuffix("/completions").removesuffix("/chat")
        self._url_query = question_mark + query
        """The end of the address, such as Azure's `?api-version=`."""
        self._url_path = URL_PATH_BY_BACKEND[backend]
        """The path of the API below the server's address."""
        self._template_switches = template_switches(arguments)
        self._runner = asyncio.Runner()
        try:
            self._http_session = self._runner.run(self._open_http_session())
            self._served = self._runner.run(self._describe_model())
        except BaseException:  # Ctrl-C must close the connections too
            self.close()
            raise

    def stream(self, requests: Sequence[Request]) -> Iterator[FinishedRequests]:
        """Generate the requests in their order; yield completions as they come, or an empty list.

        A request that fails does not hold up the others. After MOST_FAILURES_IN_A_ROW no further
        request is sent.

        Raises:
            EngineError: at the end, if any request failed. All completions were yielded.
        """
        unsent_requests = iter(requests)
        loop = self._runner.get_loop()
        # the time of the last whole completion, from which `_generate` limits pauses
        self._last_reply_time = loop.time()
        request_by_call: dict[ServerCall, Request] = {}
        failures = []
        consecutive_failure_count = 0
        try:
            while consecutive_failure_count < MOST_FAILURES_IN_A_ROW:
                free_slot_count = self._arguments.num_concurrent - len(request_by_call)
                for request in islice(unsent_requests, free_slot_count):
                    request_by_call[loop.create_task(self._generate(request))] = request
                # every request has its completion or its error, and none is left to send
                if not request_by_call:
                    break
                # all calls go on while this waits for the next to finish, and at no other time
                finished_calls, _ = self._runner.run(
                    asyncio.wait(
                        request_by_call, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
                )
                completions = []
                for call in finished_calls:
                    request = request_by_call.pop(call)
                    try:
                        completions.append((request, call.result()))
                        consecutive_failure_count = 0
                    except EngineError as error:
                        failures.append((request, error))
                        consecutive_failure_count += 1
                yield completions
        finally:
            # also after an error or an interruption, so that the server does not go on generating
            self._runner.run(_cancel(request_by_call))
        if failures:
            raise EngineError(
                f"The server at {self._base_url} gives no completion of "
                f"{_list_failures(failures)}. {CONTINUE_ADVICE}"
            )

    def facts(self) -> JsonObject:
        """The server's description of the model, for the run's receipt; its devices are unknown."""
        return {"device": "server", "device_names": None, "served": self._served}

    def close(self) -> None:
        """End all connections."""
        if hasattr(self, "_http_session"):
            self._runner.run(self._http_session.close())
        self._runner.close()

    async def _open_http_session(self) -> Any:
        """Open the session that sends all requests, with the user's headers or OPENAI_API_KEY."""
        from aiohttp import ClientSession, ClientTimeout, TCPConnector

        headers = self._arguments.header
        if not headers and (key := os.environ.get("OPENAI_API_KEY")):
            # OpenAI's API reads the first header, and Azure's the second
            headers = {"Authorization": f"Bearer {key}", "api-key": key}
        timeout = ClientTimeout(self._arguments.timeout, sock_connect=CONNECT_LIMIT_SECONDS)
        connector = TCPConnector(limit=self._arguments.num_concurrent)
        return ClientSession(connector=connector, timeout=timeout, headers=headers)

    async def _describe_model(self) -> JsonObject | None:
        """This model in the server's list of models; None if the server has no such list."""
        status, body, _ = await self._send("GET", "/models")
        if not status:
            raise ModelError(
                f"No server answers at model.model_args.base_url {self._base_url}: "
                f"{describe_error(body)}."
            )
        try:
            model_by_name = {str(model["id"]): model for model in body["data"]}
        except (KeyError, TypeError):  # not all servers list their models
            return None
        name = self._arguments.model
        if name not in model_by_name:
            raise ModelError(
                f"The server at {self._base_url} has no model {name!r} (model.model_args.model): "
                f"it serves {', '.join(model_by_name) or 'none'}."
            )
        fields = ("id", "root", "owned_by", "max_model_len")
        return {field: model_by_name[name].get(field) for field in fields}

    async def _generate(self, request: Request) -> Completion:
        """Send a request until its completion is whole, or no further attempt is allowed.

        1. No attempt follows a status outside RETRIED_STATUSES.
        2. If the server asks to wait and gave no completion, the next attempt follows this pause.
           None does if the pause would end later than `timeout` after the last whole completion of
           any request.
        3. Else `max_retries` limits the attempts, and after an incomplete completion
           MOST_INCOMPLETE_RETRIES too. The pauses double.

        An incomplete completion of the last attempt is returned.

        Raises:
            EngineError: the last reply has no completion.
        """
        retry_count = 0
        clock = asyncio.get_running_loop().time
        parameters = self._parameters(request)
        while True:
            status, body, pause_seconds = await self._send("POST", self._url_path, json=parameters)
            completion = read_reply(status, body, request.sampling.stop)
            if completion and read_reason(completion.finish_reason) != "broken":
                self._last_reply_time = clock()
                return completion
            # the same request would be refused again
            if status not in RETRIED_STATUSES:
                break
            if pause_seconds > 0 and not completion:
                # the server is busy, so it may take as long as the limit of an answer
                if clock() + pause_seconds > self._last_reply_time + self._arguments.timeout:
                    break
                await asyncio.sleep(max(pause_seconds, 1.0))
                continue
            most_retries = self._arguments.max_retries
            # the user's limit is for a broken server; here the server works
            if completion:
                most_retries = min(most_retries, MOST_INCOMPLETE_RETRIES)
            if retry_count >= most_retries:
                break
            await asyncio.sleep(2.0**retry_count)  # 1, 2, 4
            retry_count += 1
        if completion:
            return completion
        status_text = f"HTTP {status}: " if status else ""
        raise EngineError(f"{status_text}{describe_error(body)}")

    async def _send(self, method: str, path: str, **options: Any) -> tuple[int, Any, float]:
        """Send a message to the server, and wait for its response.

        Returns:
            The status, the JSON or text, and the seconds that the server asks to wait. If no
            response comes, the status is 0, and the text is the error.
        """
        from aiohttp import ClientError

        url = self._base_url + path + self._url_query
        try:
            async with self._http_session.request(method, url, **options) as response:
                status = response.status
                text = (await response.read()).decode("utf-8", "replace")
                pause_seconds = _read_pause(response.headers)
        except (ClientError, TimeoutError) as error:
            return 0, f"{type(error).__name__} {error}", 0.0
        try:
            return status, json.loads(text), pause_seconds
        except ValueError:
            return status, text, pause_seconds

    def _parameters(self, request: Request) -> JsonObject:
        """The request as the API takes it.

        vLLM's server gets all parameters: it would take missing ones from the model's
        generation_config.json. Other servers may not know parameters that OpenAI does not have, so
        those without an effect are left out.
        """
        parameters = {"model": self._arguments.model, **request.sampling.openai_arguments()}
        if self._served and self._served["owned_by"] == "vllm":
            parameters |= request.sampling.vllm_arguments()
            # the server's texts are then those that our own engine would return
            parameters |= DECODING_ARGUMENTS
        if request.seed is not None:
            parameters["seed"] = request.seed
        parameters[self._arguments.max_tokens_name] = parameters.pop("max_tokens")
        for name in self._arguments.omit:
            parameters.pop(name, None)
        if request.turns is None:
            return {**parameters, "prompt": request.prompt_token_ids or request.prompt}
        if self._template_switches:
            parameters["chat_template_kwargs"] = self._template_switches
        return {**parameters, "messages": request.turns}


def _list_failures(failures: Iterable[tuple[Request, EngineError]]) -> str:
    """The different errors, each after the first of its problems and the number of the others."""
    problems_by_error: dict[str, list[str]] = {}
    for request, error in failures:
        problems_by_error.setdefault(str(error), []).append(
            f"problem {request.problem_id} of {request.task}"
        )
    return list_first(
        [f"{list_first(problems, 1)}: {error}" for error, problems in problems_by_error.items()]
    )


async def _cancel(calls: Iterable[ServerCall]) -> None:
    """End the calls and drop their errors, because hundreds of calls may fail for one reason."""
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def _read_pause(headers: Mapping[str, str]) -> float:
    """The seconds that a server asks to wait; 0 if it does not ask."""
    try:
        return float(headers.get("Retry-After", 0))
    except ValueError:  # a date, which hardly any server sends
        return 0.0
