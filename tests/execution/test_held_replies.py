import re
from types import SimpleNamespace

from harness.engines.completions import Completion
from harness.errors import EngineError
from harness.execution.held_replies import HeldReplies
from tests.engines.test_backends import request
from tests.make import with_cases


def hold(is_chat, replies):
    """The numbers of the replies that are stored after each reply and after the last; the error."""
    task = SimpleNamespace(condition=SimpleNamespace(name="mless"))
    model = SimpleNamespace(applies_own_template=is_chat)
    plan = SimpleNamespace(config=SimpleNamespace(model=model), tasks={"t": task})
    batches = []
    for number, (sent, count, *reason) in enumerate(replies):
        token_ids = None if sent is None else (0,) * sent
        completion = Completion(
            text="so", prompt_tokens=count, finish_reason=reason[0] if reason else "stop"
        )
        batches.append([(request(str(number), prompt_token_ids=token_ids), completion)])
    numbers = []
    try:
        for batch in HeldReplies(plan).hold(batch for batch in batches):
            numbers.append([int(prompt.problem_id) for prompt, _ in batch])
    except EngineError as error:
        return numbers, str(error)
    return numbers, None


@with_cases
def test_replies_are_held_back_until_their_prompts_are_known_to_be_whole(
    is_chat, replies, stored, error
):
    numbers, message = hold(is_chat, replies)
    assert numbers == stored
    assert (message is None) == (error is None)
    assert re.search(error or "", message or "")
