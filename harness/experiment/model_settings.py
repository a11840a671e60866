"""The model of a run config: its backend, its arguments, and which of these can change a sample."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from harness import smollm2_model
from harness.errors import ConfigError, list_near
from harness.yaml_settings import Strict, find_secrets

DTYPE_SYNONYMS = {"half": "float16", "float": "float32", "double": "float64"}
"""torch's second names of number types, by which our code would not recognise them."""
DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")
"""The number types that a model can be loaded in."""


def name_dtype(value: object) -> str:
    """The one name of a number type that has several, such as float32 for `torch.float`.

    Raises:
        ConfigError: a model cannot be loaded in this type.
    """
    name = str(value).removeprefix("torch.")
    name = DTYPE_SYNONYMS.get(name, name)
    if name not in DTYPES:
        raise ConfigError(f"dtype: expected {list_near(name, DTYPES)}, got {value!r}.")
    return name


class ModelConfig(Strict):
    """The model and the backend that runs it."""

    backend: str = "vllm"
    """`vllm`, or lm-eval's name: `hf`, `local-completions`, `local-chat-completions`."""
    model_args: dict[str, Any] = Field(default_factory=dict)
    """The backend's arguments. `pretrained: smollm2` is a small real model."""
    label: str | None = None
    """Its name in tables. By default its path's end."""

    @field_validator("model_args")
    @classmethod
    def _refuse_secrets(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        for key in find_secrets(arguments):
            raise ConfigError(
                f"model.model_args{key} looks like a secret, and a config is copied into journal, "
                "receipt and logs. Remove it and set the variable that the library reads instead: "
                "HF_TOKEN for the hub, OPENAI_API_KEY for a server."
            )
        return arguments

    @field_validator("model_args")
    @classmethod
    def _name_dtype(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments.get("dtype") is None:
            return arguments
        return {**arguments, "dtype": name_dtype(arguments["dtype"])}

    @property
    def name(self) -> str:
        """The model's name or path in its arguments."""
        return str(self.model_args.get("pretrained") or self.model_args.get("model") or "")

    @property
    def takes_seeds(self) -> bool:
        """Whether the backend takes a seed for each sample: vLLM does, and so do servers."""
        # lm-eval's local models draw a whole batch from one generator
        return self.backend == "vllm" or "base_url" in self.model_args

    @property
    def templates_itself(self) -> bool:
        """Whether the backend takes the turns of a chat, and applies its own chat template."""
        return self.backend.endswith("chat-completions")

    @property
    def display_name(self) -> str:
        """The model's name in tables and figures."""
        return self.label or smollm2_model.label_model(self.name)


FREE_ARGUMENTS = frozenset(
    "pretrained model tokenizer base_url gpu_memory_utilization kv_cache_memory_bytes "
    "max_num_seqs max_num_batched_tokens data_parallel_size num_concurrent max_retries timeout "
    "header batch_size device device_ids download_dir load_format distributed_executor_backend "
    "numa_bind".split()
)
"""Model arguments that may differ when a run is continued: paths, loading, memory, concurrency."""


def fixed_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Select the model arguments that can change a sample."""
    free = set(FREE_ARGUMENTS)
    if arguments.get("load_format") == "dummy":
        free.remove("load_format")  # dummy weights are random, so this one changes samples
    return {name: value for name, value in arguments.items() if name not in free}
