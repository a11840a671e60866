"""vLLM's worker with open layers. vLLM imports it in its own processes, by its name."""

from typing import Any

from vllm.platforms import current_platform

from harness.engines.engine_processes import PLUGIN_NAME, WorkerFacts
from harness.engines.interventions.vllm_worker import WorkerInterventions

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class OpenWorker(Worker, WorkerFacts):  # type: ignore[misc]  # vLLM has no types
    """A worker that opens the layers of `add_open_layers` as soon as its model is loaded.

    This is before vLLM compiles or captures anything.
    """

    make_interventions = WorkerInterventions

    def load_model(self, *arguments: Any, **options: Any) -> None:
        """Load the model and open its layers."""
        super().load_model(*arguments, **options)
        layer_settings = self.vllm_config.additional_config[PLUGIN_NAME]
        self._interventions = self.make_interventions(self, layer_settings)

    def determine_available_memory(self) -> int:
        """The memory for vLLM's cache; the rest is for recording and for states stored twice."""
        return self._interventions.reserve_memory(super().determine_available_memory())

    def mless_check_rows(self) -> None:
        """Raise RuntimeError if rows were skipped."""
        self._interventions.check_rows()

    def mless_take_attention(self) -> dict[str, Any]:
        """The attention of complete prompts: see `vllm_worker.WorkerInterventions`."""
        return self._interventions.take_attention()
