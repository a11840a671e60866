"""lm-eval's own model objects behind the same stream as ours, for every backend that is not vLLM.

They return nothing before a batch is done and keep no finish reason; only servers are told a sample's own seed. What
an interruption costs with them is one batch, not more.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from harness.engines.lm_eval_vllm import MlessVLLM
from harness.engines.start_errors import explain_start_error
from harness.engines.vllm import Finished
from harness.errors import ConfigError, EngineError, HarnessError, MissingDependencyError, ModelError
from harness.experiment.requests import Request
from harness.experiment.sampling import sample_seed
from harness.experiment.tokens import refuse_missing_folder

if TYPE_CHECKING:
    from lm_eval.api.model import LM

BATCH = 64
"""Requests handed to a backend at once, and so what an interruption can cost."""

BATCH_SIZE = 8
"""lm-eval's batch size unless the config's arguments say another; its `auto` tries sizes for minutes on a CPU."""


class LmEvalBackend:
    """Any of lm-eval's models as a stream of finished completions."""

    def __init__(self, model: LM) -> None:
        self.model = model

    def stream(self, requests: Sequence[Request]) -> Iterator[list[tuple[Request, Finished]]]:
        """Generate the requests batch by batch, in order."""
        from lm_eval.api.instance import Instance

        for start in range(0, len(requests), BATCH):
            batch = requests[start : start + BATCH]
            instances = [
                Instance(
                    request_type="generate_until",
                    doc={"id": request.problem_id},
                    arguments=(self._text(request), _generation_arguments(request)),
                    idx=0,
                    metadata=(request.task, number, 1),
                )
                for number, request in enumerate(batch, start=start)
            ]
            if not batch[0].sampling.greedy and batch[0].seed is None:
                _seed_torch(batch[0])
            try:
                texts = self.model.generate_until(instances)
            except Exception as error:  # whatever a server or a library raises
                raise EngineError(
                    f"The backend stopped: {type(error).__name__}: {' '.join(str(error).split())[:400]} Everything "
                    "finished is in the journal: mend the cause and run the same command again to continue."
                ) from error
            yield [
                (request, Finished(request_id="", text=str(text), completion_tokens=None, finish_reason=None))
                for request, text in zip(batch, texts, strict=True)
            ]

    def facts(self) -> dict[str, Any]:
        """What generates, for the run's receipt, as far as lm-eval's model tells."""
        device = getattr(self.model, "device", None)
        name = None
        if getattr(device, "type", None) == "cuda":
            import torch

            name = torch.cuda.get_device_name(device)
        return {"device": device and str(device), "device_names": name and [name]}

    def _text(self, request: Request) -> Any:
        """The prompt; a chat API gets the turns in lm-eval's own wrapping."""
        return request.prompt if request.turns is None else self.model.apply_chat_template(list(request.turns))

    def close(self) -> None:
        """Nothing to shut down: lm-eval's models end with the process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _generation_arguments(request: Request) -> dict[str, Any]:
    """lm-eval's arguments; a server is told the sample's seed, or it would draw all samples from lm-eval's one."""
    return request.sampling.lm_eval() | ({} if request.seed is None else {"seed": request.seed})


def _seed_torch(first: Request) -> None:
    """Local models draw a whole batch from torch's one generator: seed it by what the batch begins with."""
    from transformers import set_seed

    set_seed(sample_seed(0, f"{first.task}:{first.problem_id}", first.sample_index, first.replicate))


def open_backend(backend: str, arguments: Mapping[str, Any], *, sampled: bool) -> MlessVLLM | LmEvalBackend:
    """Load the model once: `vllm` through our engine, any other by lm-eval's own model of that name.

    Raises:
        ConfigError: no such backend, or an argument that cannot be obeyed.
        ModelError: no such model, or the backend does not start.
        MissingDependencyError: the backend's package is not installed.
    """
    name = str(arguments.get("pretrained") or "")
    if name:
        refuse_missing_folder(name)
    if backend == "vllm":
        return MlessVLLM(sampled=sampled, **arguments)
    try:
        model: LM = _find_model_class(backend).create_from_arg_obj({"batch_size": BATCH_SIZE, **arguments})
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"The backend {backend!r} needs the package {error.name!r}. Install it, or use `backend: vllm`."
        ) from error
    except HarnessError:
        raise
    except Exception as error:  # whatever lm-eval, transformers or a server's client raises
        raise ModelError(explain_start_error(name, error, program=f"The backend {backend!r}")) from error
    return LmEvalBackend(model)


def _find_model_class(backend: str) -> Any:
    import lm_eval.models  # noqa: F401 - puts lm-eval's own names into its registry
    from lm_eval.api.registry import get_model, model_registry

    names = sorted({"vllm", *model_registry.keys()})
    if backend not in names:
        near = difflib.get_close_matches(backend, names)
        raise ConfigError(
            f"model.backend is {backend!r}, and there is no such backend."
            + (f" Did you mean {' or '.join(near)}?" if near else "")
            + f" Expected one of {', '.join(names)}."
        )
    return get_model(backend)
