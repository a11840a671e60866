"""The model of a run config: its backend, its arguments, and which of these can change a sample."""

from pydantic import Field, field_validator

from harness.constants import JsonObject
from harness.errors import ConfigError, list_near
from harness.smollm2_model import SMOLLM2, SMOLLM2_FOLDER, SMOLLM2_LABEL
from harness.yaml_settings import Strict, find_secrets

DTYPE_BY_SYNONYM = {"half": "float16", "float": "float32", "double": "float64"}
"""torch's second names of number types, by which our code would not recognise them."""
DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")
"""The number types that a model can be loaded in."""


def name_dtype(value: object) -> str:
    """The name that mless uses for a number type, such as float32 for `torch.float`.

    Raises:
        ConfigError: a model cannot be loaded in this type.
    """
    dtype_name = str(value).removeprefix("torch.")
    dtype_name = DTYPE_BY_SYNONYM.get(dtype_name, dtype_name)
    if dtype_name not in DTYPES:
        raise ConfigError(f"dtype: expected {list_near(dtype_name, DTYPES)}, got {value!r}.")
    return dtype_name


def label_model(name: str) -> str:
    """The default name of a model in tables and figures: the last component of its path."""
    last_component = name.rstrip("/").rpartition("/")[2]
    is_smollm2 = name == SMOLLM2 or last_component == SMOLLM2_FOLDER
    return SMOLLM2_LABEL if is_smollm2 else last_component


class ModelConfig(Strict):
    """The model and the backend that runs it."""

    backend: str = "vllm"
    """`vllm`, or lm-eval's name: `hf`, `local-completions`, `local-chat-completions`."""
    model_args: JsonObject = Field(default_factory=dict)
    """The backend's arguments. `pretrained: smollm2` is a small real model."""
    label: str | None = None
    """The model's name in tables. By default the last part of its path: `Qwen2.5-7B`."""

    @field_validator("model_args")
    @classmethod
    def _check_arguments(cls, arguments: JsonObject) -> JsonObject:
        for key in find_secrets(arguments):
            raise ConfigError(
                f"model.model_args{key} looks like a secret, and a config is copied into journal, "
                "receipt and logs. Remove it and set the variable that the library reads instead: "
                "HF_TOKEN for the hub, OPENAI_API_KEY for a server."
            )
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
    def applies_own_template(self) -> bool:
        """Whether the backend takes the turns of a chat, and applies its own chat template."""
        return self.backend.endswith("chat-completions")

    @property
    def display_name(self) -> str:
        """The model's name in tables and figures."""
        return self.label or label_model(self.name)


FREE_ARGUMENTS = frozenset(
    "pretrained model tokenizer base_url gpu_memory_utilization kv_cache_memory_bytes "
    "max_num_seqs max_num_batched_tokens data_parallel_size num_concurrent max_retries timeout "
    "header batch_size device device_ids download_dir load_format distributed_executor_backend "
    "numa_bind".split()
)
"""Model arguments that may differ when a run is continued: paths, loading, memory, concurrency."""


def select_fixed_arguments(arguments: JsonObject) -> JsonObject:
    """Select the model arguments that can change a sample."""
    free_names = FREE_ARGUMENTS
    # dummy weights are random, so this format changes the samples
    if arguments.get("load_format") == "dummy":
        free_names -= {"load_format"}
    return {name: value for name, value in arguments.items() if name not in free_names}


LOADER_ARGUMENTS = {"revision", "tokenizer", "tokenizer_revision", "trust_remote_code"}
"""Model arguments with which Hugging Face loads the same model and tokenizer."""
NEUTRAL_ARGUMENTS = frozenset(
    """
    chat_template reasoning_config
    dtype seed max_model_len max_length max_gen_toks max_batch_size enable_thinking
    chat_template_args think_end_token truncation truncation_side prefix_token_id
    tensor_parallel_size pipeline_parallel_size enable_expert_parallel all2all_backend
    expert_placement_strategy enable_eplb eplb_config disable_custom_all_reduce nnodes node_rank
    master_addr master_port data_parallel_backend data_parallel_size_local
    distributed_timeout_seconds max_parallel_loading_workers ray_workers_use_nsight
    enforce_eager compilation_config optimization_level performance_mode cudagraph_capture_sizes
    max_cudagraph_capture_size batch_invariant attention_backend moe_backend linear_backend
    kernel_config disable_cascade_attn enable_flashinfer_autotune enable_dbo
    block_size swap_space cpu_offload_gb num_gpu_blocks_override enable_prefix_caching
    prefix_caching_hash_algo enable_chunked_prefill max_num_scheduled_tokens
    long_prefill_token_threshold disable_hybrid_kv_cache_manager enable_sleep_mode
    kv_offloading_size kv_offloading_backend safetensors_load_strategy scheduling_policy
    scheduler_reserve_full_isl async_scheduling stream_interval speculative_config
    generation_config override_generation_config reasoning_parser structured_outputs_config
    max_logprobs logprobs_mode limit_mm_per_prompt language_model_only skip_mm_profiling
    mm_processor_cache_gb served_model_name use_tqdm_on_load disable_log_stats
    enable_log_requests log_level logging_config log_config_file otlp_traces_endpoint
    parallelize gpus max_memory_per_gpu max_cpu_memory offload_folder tp_plan device_map
    attn_implementation low_cpu_mem_usage mixed_precision_dtype softmax_dtype logits_cache
    tokenizer_backend tokenized_requests max_tokens_name omit eos_string verify_certificate
    ca_cert_path max_images
    """.split()
)
"""Further model arguments with which the attention of given tokens is the same, but for rounding.

The lines are of several backends (rounding, lengths, sampling, and how text becomes a prompt), of
vLLM (parallelism, compilation, kernels; memory, batches, sampling, logging), of lm-eval's `hf`, and
of servers. Any other argument, also one that is not known here, may make another model.
"""


def select_loader_arguments(arguments: JsonObject) -> JsonObject:
    """The arguments of LOADER_ARGUMENTS with which a model was run.

    Raises:
        ConfigError: another argument may change what the model computes.
    """
    # `load_format` counts, because it may ask for random weights
    neutral_names = (FREE_ARGUMENTS | NEUTRAL_ARGUMENTS) - LOADER_ARGUMENTS - {"load_format"}
    loader_arguments = {
        name: value
        for name, value in arguments.items()
        if name not in neutral_names and value not in (None, "auto")
    }
    for name in loader_arguments.keys() - LOADER_ARGUMENTS:
        raise ConfigError(
            f"The run has model.model_args.{name} {loader_arguments[name]!r}, which may change the "
            "model and which the probe does not use: expected a run without it, or another model."
        )
    return loader_arguments
