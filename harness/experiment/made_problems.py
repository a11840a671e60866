"""Arithmetic problems that are made here: no model was trained on this very set, and every answer is sure."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from harness.yaml_settings import Strict

Operand = Annotated[int, Field(ge=1, le=10**9)]
Sign = tuple[str, str]
"""How an operation is written, in a problem's id and in its text."""
SIGNS: dict[str, tuple[Sign, ...]] = {
    "products": (("x", "times"),),
    "sums": (("+", "plus"),),
    "differences": (("-", "minus"),),
    "quotients": (("/", "divided by"),),
    "chain": (("+", "+"), ("-", "-"), ("*", "*")),
}
"""The operations of each kind of problem."""


class MadeConfig(Strict):
    """Arithmetic problems, such as `What is 7 times 8?`."""

    make: Literal["products", "sums", "differences", "quotients", "chain"]
    """`products`, `sums`, `differences`, `quotients` or `chain` (`What is 3 + 4 * 2 - 5?`)."""
    seed: int = Field(default=1, ge=0)
    """The seed of what is drawn and in which order. A larger count begins with the same problems."""
    operands: tuple[Operand, Operand] = (2, 12)
    """The least and the greatest number. Differences and quotients are these sums and products, asked backwards."""
    count: int | None = Field(default=None, ge=1, le=100_000)
    """How many problems. By default all, at most 200."""
    depth: int = Field(default=3, ge=1, le=20)
    """The operations of a chain; other problems have one."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        low, high = self.operands
        if low > high:
            raise ValueError(f"operands: expected the least number first, got {low} and {high}")
        if self.count is not None and self.count > self._possible:
            raise ValueError(f"count: {low} to {high} give {self._possible} {self.make}, got {self.count}")
        return self

    @property
    def _parts(self) -> list[Sequence[Any]]:
        """What each part of a problem is drawn from: first its operands, then its signs."""
        operations = self.depth if self.make == "chain" else 1
        numbers = range(self.operands[0], self.operands[1] + 1)
        return [*[numbers] * (operations + 1), *[SIGNS[self.make]] * operations]

    @property
    def _possible(self) -> int:
        """How many different problems there are."""
        return math.prod(map(len, self._parts))

    def problems(self) -> Iterator[dict[str, Any]]:
        """The fields of every problem, as `problems.Problem` has them.

        The level is the number of digits of both operands; of a chain, that of its operations. Problems of the same
        operands in another order are one cluster, known by the id of the one with the smaller first; so are the
        differences of one sum, the quotients of one product, and chains of the same operands and signs.
        """
        draw = random.Random(self.seed)
        places: dict[int, None] = {}
        while len(places) < (self.count or min(self._possible, 200)):
            places[draw.randrange(self._possible)] = None
        for place in places:
            drawn = []
            for part in self._parts:
                place, which = divmod(place, len(part))
                drawn.append(part[which])
            middle = len(drawn) // 2 + 1
            numbers, signs = drawn[:middle], drawn[middle:]
            yield {
                **_pose(numbers, signs),
                "level": len(signs) if self.make == "chain" else len("".join(map(str, numbers))),
                "cluster": _pose(sorted(numbers), sorted(signs))["id"],
            }


def _pose(numbers: list[int], signs: list[Sign]) -> dict[str, str]:
    """The id of a problem, its text and its answer."""
    first, *others = numbers
    if signs[0][1] in ("minus", "divided by"):  # asked backwards
        first = first + others[0] if signs[0][0] == "-" else first * others[0]
    terms = [first]
    for (sign, _), number in zip(signs, others, strict=True):
        match sign:
            case "x" | "*":  # binds more tightly than plus and minus
                terms[-1] *= number
            case "/":
                terms[-1] //= number
            case _:
                terms.append(number if sign == "+" else -number)
    name, text = (
        str(first) + "".join(f"{gap}{sign[way]}{gap}{number}" for sign, number in zip(signs, others, strict=True))
        for way, gap in enumerate(("", " "))
    )
    return {"id": name, "problem": f"What is {text}?", "answer": str(sum(terms))}
