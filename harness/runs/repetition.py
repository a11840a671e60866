"""Does a completion end in a loop? Models that lose the thread repeat themselves until they are cut off."""

from __future__ import annotations

LOOP_LENGTH, LOOP_COUNT = 100, 4
"""A completion loops if its last so many characters occur so many times in it."""


def loops(completion: str) -> bool:
    """Whether a completion ends in a loop: its last `LOOP_LENGTH` characters occur `LOOP_COUNT` times or more.

    Occurrences do not overlap. A block of up to 100 characters is found if it repeats over the last 700, a longer one
    if it stands there four times; a loop that the model left again is not found.
    """
    text = completion.rstrip()
    if len(text) < LOOP_LENGTH * LOOP_COUNT:
        return False
    before = len(text) - LOOP_LENGTH
    # a few characters are looked for much faster than many, and in most texts they do not occur a second time
    return text.rfind(text[-16:], 0, before) >= 0 and text.count(text[before:]) >= LOOP_COUNT
