"""Open the backend of a run config: our vLLM engine, a served model, or a model of lm-eval's.

All take requests and give completions. lm-eval's models return nothing before a batch is finished,
so an interruption costs a batch. They report no finish reason. Of them only servers get a sample's
own seed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any

from harness.engines.completions import Completion, FinishedRequests
from harness.engines.engine_choice import open_engines, read_engine_choice
from harness.engines.engine_options import engine_arguments
from harness.engines.engine_pool import EnginePool
from harness.engines.engine_processes import make_stop_error
from harness.engines.interventions.open_layers import refuse_interventions
from harness.engines.served_model import URL_PATH_BY_BACKEND, ServedModel, check_served
from harness.engines.start_errors import explain_start_error
from harness.engines.vllm_engine import VLLMEngine
from harness.errors import ConfigError, ModelError
from harness.experiment.generation_settings import sample_seed
from harness.experiment.plan import Request
from harness.experiment.run_config import RunConfig

REQUESTS_PER_LM_EVAL_CALL = 64
"""Requests in one call of a model of lm-eval's, and so the most that an interruption costs."""
LM_EVAL_DEFAULT_BATCH_SIZE = 8
"""lm-eval's batch size unless the config has another; its `auto` tries sizes for minutes on a
CPU."""


def check_backend(config: RunConfig, engine_choice: int | str | None = None) -> int | str:
    """Refuse a config that its backend cannot carry out, and return the number of engines.

    Use it before prompts are built, which takes long.

    Args:
        config: The run config.
        engine_choice: The value of `--engines`; None where it is not given.

    Returns:
        The number of engines, or `auto`.

    Raises:
        ConfigError: the backend must not get an argument, or cannot have so many engines.
        ModuleNotFoundError: several engines, without Ray.
    """
    backend = config.model.backend
    arguments = config.model_arguments()
    refuse_interventions(config)
    if backend == "vllm":
        engine_arguments(arguments)  # raises an error if they cannot be vLLM's
        return read_engine_choice(engine_choice, arguments)
    if engine_choice is not None:
        raise ConfigError(
            f"--engines is {engine_choice}, and model.backend is {backend!r}: only vllm has "
            "engines of our own."
        )
    if backend in URL_PATH_BY_BACKEND:
        check_served(config)
    return 1


class LmEvalBackend:
    """A model of lm-eval's (`lm_eval.api.model.LM`) as a stream of completions."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def stream(self, requests: Sequence[Request]) -> Iterator[FinishedRequests]:
        """Generate the requests batch by batch, in order.

        Raises:
            EngineError: the model or its server failed.
        """
        for first_index in range(0, len(requests), REQUESTS_PER_LM_EVAL_CALL):
            batch = requests[first_index : first_index + REQUESTS_PER_LM_EVAL_CALL]
            instances = [
                self._make_instance(request, request_index)
                for request_index, request in enumerate(batch, first_index)
            ]
            _seed_batch(batch[0])
            try:
                texts = self.model.generate_until(instances)
            except Exception as error:  # a server or a library may raise any error
                raise make_stop_error("The backend", error) from error
            yield [
                (request, Completion(text=str(text)))
                for request, text in zip(batch, texts, strict=True)
            ]

    def _make_instance(self, request: Request, request_index: int) -> Any:
        """A request as lm-eval's models take it; `request_index` counts all requests of the run."""
        from lm_eval.api.instance import Instance

        prompt = request.prompt
        settings = request.sampling.lm_eval_arguments()
        # lm-eval's chat models accept a conversation only as the text that `apply_chat_template`
        # makes of its turns
        if request.turns is not None:
            prompt = self.model.apply_chat_template(list(request.turns))
        # lm-eval's server models send the same seed for all samples that have none
        if request.seed is not None:
            settings["seed"] = request.seed
        # 0 is the index of the request among those of its document; the last argument has the task,
        # the index of the document, and the number of its repeats
        return Instance(
            "generate_until",
            {"id": request.problem_id},
            (prompt, settings),
            0,
            (request.task, request_index, 1),
        )

    def facts(self) -> dict[str, Any]:
        """The device of the model, for the run's receipt; None where lm-eval does not report it."""
        device = getattr(self.model, "device", None)
        return {"device": None if device is None else str(device), "device_names": None}


def _seed_batch(first_request: Request) -> None:
    """Seed torch's generator, from which local models draw all samples of a batch.

    The seed follows from the batch's first request, so the samples are the same in every run.
    """
    # greedy requests draw nothing, and a server that draws gets each request's own seed
    if first_request.sampling.is_greedy or first_request.seed is not None:
        return
    from transformers import set_seed

    seed_key = f"{first_request.task}:{first_request.problem_id}"
    # 0, because a request does not have the run's seed
    set_seed(sample_seed(0, seed_key, first_request.sample_index, first_request.replicate))


def open_backend(
    backend: str,
    arguments: Mapping[str, Any],
    *,
    has_sampled_requests: bool,
    engine_choice: int | str,
    request_count: int,
    log_path: Path,
) -> AbstractContextManager[VLLMEngine | EnginePool | ServedModel | LmEvalBackend]:
    """Load the model; it is shut down at the end of the context.

    Args:
        backend: `vllm` for our engine, a key of `served_model.URL_PATH_BY_BACKEND` for a server,
            else the name of a model of lm-eval's.
        arguments: lm-eval's model arguments.
        has_sampled_requests: Whether any request will be sampled.
        engine_choice: The number of engines, or `auto`; only for `vllm`.
        request_count: The number of requests; no more engines are started.
        log_path: A file for the messages of the libraries of several engines.

    Raises:
        ConfigError: an argument cannot be used.
        ModelError: no such model, or the backend does not start.
    """
    if backend == "vllm":
        return closing(
            open_engines(arguments, engine_choice, has_sampled_requests, request_count, log_path)
        )
    if backend in URL_PATH_BY_BACKEND:
        return closing(ServedModel(backend, arguments))
    options = {"batch_size": LM_EVAL_DEFAULT_BATCH_SIZE, **arguments}
    # lm-eval's models do not know this argument, and the prompts already are in the template
    options.pop("chat_template", None)
    try:
        import lm_eval.models  # noqa: F401 - puts lm-eval's own names into its registry
        from lm_eval.api.registry import get_model

        model = get_model(backend).create_from_arg_obj(options)
    except Exception as error:  # lm-eval and its backends raise errors of any kind
        raise ModelError(
            explain_start_error(
                str(arguments.get("pretrained") or ""), error, program=f"The backend {backend!r}"
            )
        ) from error
    # lm-eval's models end with the process: nothing to close
    return nullcontext(LmEvalBackend(model))
