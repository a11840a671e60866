"""Which replies of a server are stored: none to a prompt that it cut, and none while it is broken.

A server can cut a prompt without an error, and end a request with a part of a text. So replies are
held back until one shows that the server works. What is held back when a run stops is generated
again.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from harness.engines.completions import FinishedRequests
from harness.engines.engine_processes import CONTINUE
from harness.errors import EngineError
from harness.experiment.plan import Plan
from harness.finish_reasons import read_reason
from harness.runs.records import Sample


class HeldReplies:
    """Holds replies back until they can be stored.

    A server may add tokens to every prompt, such as BOS or those of its template. So its count less
    the number of tokens that were sent must be the same number for all prompts. Some chat servers
    do not count: they report one number, which is more than some prompts have.

    Args:
        plan: The plan of the run.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._has_whole_reply = False
        self._counts: set[int | None] = set()
        self._differences: dict[int, Sample] = {}
        """The first sample with each difference between the server's count of tokens and ours."""

    def compare(self, sample: Sample) -> None:
        """Compare the server's count with that of other prompts, also for a recorded sample.

        Raises:
            EngineError: the server cut or changed a prompt.
        """
        self._has_whole_reply |= read_reason(sample.finish_reason) != "broken"
        if sample.added_tokens is None:
            return
        self._counts.add(sample.server_tokens)
        self._differences.setdefault(sample.added_tokens, sample)
        has_constant_count = self._plan.config.model.applies_own_template and len(self._counts) == 1
        if not has_constant_count:
            self._refuse_differences()

    def hold(self, stream: Any) -> Iterator[FinishedRequests]:
        """The completions of a stream when they can be stored.

        Raises:
            EngineError: as `compare`, or no reply of the run is a whole completion.
        """
        held: FinishedRequests = []
        # closing the stream ends its requests before the connections are closed
        with closing(stream):
            for batch in stream:
                held += batch
                for request, completion in batch:
                    self.compare(
                        Sample.of(
                            request,
                            key="",
                            completion="",
                            reason=completion.finish_reason,
                            server_tokens=completion.prompt_tokens,
                        )
                    )
                if self._has_whole_reply and not self._may_be_cut():
                    yield held
                    held = []
                else:
                    yield []
        if self._may_be_cut():
            self._refuse_differences()
        if held and not self._has_whole_reply:
            request, completion = held[0]
            raise EngineError(
                f"The server gives no whole completion, such as that of problem "
                f"{request.problem_id} of {request.task}: finish reason "
                f"{completion.finish_reason}. {CONTINUE}"
            )
        yield held

    def _may_be_cut(self) -> bool:
        """Whether all prompts have the same count, which is less than the tokens of some."""
        return len(self._counts) == 1 and max(self._differences) <= 0 > min(self._differences)

    def _refuse_differences(self) -> None:
        lowest, highest = min(self._differences), max(self._differences)
        if lowest == highest:
            return
        sample = self._differences[lowest]
        task = self._plan.tasks[sample.task]
        raise EngineError(
            f"The server counts {sample.server_tokens} tokens in the prompt of problem "
            f"{sample.problem_id} under {task.condition.name}, which has {sample.prompt_tokens}. "
            f"Its count of other prompts differs by {highest:+}, so it cuts or changes prompts, or "
            "model.model_args.tokenizer is not its tokenizer."
        )
