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

    The difference of a reply is the server's count of the tokens in its prompt less the number that
    was sent. A server may add tokens to every prompt, such as BOS or those of its template, so the
    difference need not be 0. The first case that holds decides:

    1. Differences vary, and the server has more than one count, or applies no chat template: it
       cuts or changes prompts, so the run ends with an error.
    2. The server has one count for all prompts, which is less than was sent for some and more than
       was sent for none: it may have cut all of them to one length, so replies are held back. If
       the run ends like this, they are stored if all differences are equal; else it is an error.
    3. All differences are equal, or a chat server has one count for all prompts, which is more than
       was sent for some. Such a server does not count. Replies are stored.

    A reply without a count is not compared. In case 3 replies are still held back until one of them
    is a whole completion.

    Args:
        plan: The plan of the run.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._has_whole_reply = False
        """Whether a reply was a whole completion, and not a part that an error ended."""
        self._server_counts: set[int | None] = set()
        self._sample_by_difference: dict[int, Sample] = {}
        """The first sample with each difference between the server's count of tokens and ours."""

    def add_reply(self, sample: Sample) -> None:
        """Note the server's reply of a new or recorded sample, and refuse a server in case 1.

        Raises:
            EngineError: case 1, the server cuts or changes prompts.
        """
        if read_reason(sample.finish_reason) != "broken":
            self._has_whole_reply = True
        if sample.added_tokens is None:
            return
        self._server_counts.add(sample.server_tokens)
        self._sample_by_difference.setdefault(sample.added_tokens, sample)
        is_chat_server = self._plan.config.model.applies_own_template
        # case 1; a chat server that has one count for all prompts may not count at all
        if len(self._server_counts) > 1 or not is_chat_server:
            self._refuse_varying_differences()

    def hold(self, stream: Any) -> Iterator[FinishedRequests]:
        """Yield the completions of a stream, in its order, when they can be stored.

        After each batch of the stream there is one list: all completions that are held back, or an
        empty list, with which the run goes on grading and showing its progress. After the last
        batch the rest is yielded.

        Raises:
            EngineError: the server cuts or changes prompts, or no reply of the run is a whole
                completion.
        """
        held_completions: FinishedRequests = []
        # closing the stream ends its requests before the connections are closed
        with closing(stream):
            for batch in stream:
                held_completions += batch
                for request, completion in batch:
                    # only the counts of tokens and the finish reason are needed
                    reply = Sample.of(
                        request,
                        key="",
                        completion="",
                        finish_reason=completion.finish_reason,
                        server_tokens=completion.prompt_tokens,
                    )
                    self.add_reply(reply)
                if self._has_whole_reply and not self._may_cut_all_prompts():
                    yield held_completions
                    held_completions = []
                else:
                    yield []
        # the run ends in case 2
        if self._may_cut_all_prompts():
            self._refuse_varying_differences()
        if held_completions and not self._has_whole_reply:
            request, completion = held_completions[0]
            raise EngineError(
                f"The server gives no whole completion, such as that of problem "
                f"{request.problem_id} of {request.task}: finish reason "
                f"{completion.finish_reason}. {CONTINUE_ADVICE}"
            )
        yield held_completions

    def _may_cut_all_prompts(self) -> bool:
        """Whether the server may have cut all prompts to one length: case 2 of the class."""
        differences = self._sample_by_difference.keys()
        return len(self._server_counts) == 1 and min(differences) < 0 and max(differences) <= 0

    def _refuse_varying_differences(self) -> None:
        """Raise EngineError unless all differences are the same number."""
        lowest_difference = min(self._sample_by_difference)
        highest_difference = max(self._sample_by_difference)
        if lowest_difference == highest_difference:
            return
        sample = self._sample_by_difference[lowest_difference]
        raise EngineError(
            f"The server counts {sample.server_tokens} tokens in the prompt of problem "
            f"{sample.problem_id} under {self._plan.tasks[sample.task].condition.name}, which has "
            f"{sample.prompt_tokens}. Its count of other prompts differs by "
            f"{highest_difference:+}, so it cuts or changes prompts, or "
            "model.model_args.tokenizer is not its tokenizer."
        )
