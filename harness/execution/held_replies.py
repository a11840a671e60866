"""Which replies of a server are stored: none to a prompt that it cut, and none while it is broken.

A server can cut a prompt without an error, and end a request with a part of a text. So replies are
held back until one shows that the server works. What is held back when a run stops is generated
again.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from harness.engines.completions import FinishedRequests
from harness.engines.engine_processes import CONTINUE_ADVICE
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
        self._server_counts: set[int | None] = set()
        self._sample_by_difference: dict[int, Sample] = {}
        """The first sample with each difference between the server's count of tokens and ours."""

    def compare(self, sample: Sample) -> None:
        """Compare the server's count with that of other prompts, also for a recorded sample.

        Raises:
            EngineError: the server cut or changed a prompt.
        """
        self._has_whole_reply |= read_reason(sample.finish_reason) != "broken"
        if sample.added_tokens is None:
            return
        self._server_counts.add(sample.server_tokens)
        self._sample_by_difference.setdefault(sample.added_tokens, sample)
        is_chat_server = self._plan.config.model.applies_own_template
        # a chat server that reports one number for all prompts does not count
        if len(self._server_counts) > 1 or not is_chat_server:
            self._refuse_differences()

    def hold(self, stream: Any) -> Iterator[FinishedRequests]:
        """The completions of a stream when they can be stored.

        Raises:
            EngineError: as `compare`, or no reply of the run is a whole completion.
        """
        held_completions: FinishedRequests = []
        # closing the stream ends its requests before the connections are closed
        with closing(stream):
            for batch in stream:
                held_completions += batch
                for request, completion in batch:
                    self.compare(
                        # only the counts of tokens and the finish reason are compared
                        Sample.of(
                            request,
                            key="",
                            completion="",
                            finish_reason=completion.finish_reason,
                            server_tokens=completion.prompt_tokens,
                        )
                    )
                if self._has_whole_reply and not self._may_be_cut():
                    yield held_completions
                    held_completions = []
                else:
                    yield []
        if self._may_be_cut():
            self._refuse_differences()
        if held_completions and not self._has_whole_reply:
            request, completion = held_completions[0]
            raise EngineError(
                f"The server gives no whole completion, such as that of problem "
                f"{request.problem_id} of {request.task}: finish reason "
                f"{completion.finish_reason}. {CONTINUE_ADVICE}"
            )
        yield held_completions

    def _may_be_cut(self) -> bool:
        """Whether the server may have cut all prompts to one length.

        Then it counts the same number for all of them, which is less than was sent for some, and
        more than was sent for none.
        """
        # a difference is the server's count less the number of tokens that were sent
        differences = self._sample_by_difference
        return len(self._server_counts) == 1 and min(differences) < 0 and max(differences) <= 0

    def _refuse_differences(self) -> None:
        """Raise EngineError unless the server's count and ours differ by one constant number."""
        differences = self._sample_by_difference
        lowest_difference, highest_difference = min(differences), max(differences)
        if lowest_difference == highest_difference:
            return
        sample = differences[lowest_difference]
        condition = self._plan.tasks[sample.task].condition
        raise EngineError(
            f"The server counts {sample.server_tokens} tokens in the prompt of problem "
            f"{sample.problem_id} under {condition.name}, which has {sample.prompt_tokens}. "
            f"Its count of other prompts differs by {highest_difference:+}, so it cuts or changes "
            "prompts, or model.model_args.tokenizer is not its tokenizer."
        )
