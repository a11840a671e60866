"""Values out of fixed sets that a command line lists and checks; apart, so that its help imports nothing heavy."""

from __future__ import annotations

from typing import Literal

View = Literal["aligned", "full"]
"""A curve with the filler's positions taken out, or over the prompt as it was."""

Shown = Literal[View, "difference"]
"""Also the paired difference of two conditions, token by token, in the aligned view."""

Dtype = Literal["float32", "bfloat16", "float16"]
"""What the layers are computed in."""
