"""Problems in MATH-500's schema, made by code: seven subjects, five levels, worked solutions.

Each family draws its numbers from a seeded generator and writes a problem, a worked solution that ends in a box, and
the answer. The answers are there to exercise a grader: integers, negatives, fractions, tuples, intervals, surds,
percentages, polynomials, matrices, numbers in other bases. Two problems are the same problem if family and numbers
agree, however they are worded; the 500 bundled ones and the training ones share none.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

DEMO_SIZE = 500
DEMO_SEED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One drawn problem. `numbers` identifies it within its family."""

    numbers: tuple[int, ...]
    problem: str
    solution: str
    answer: str


Family = Callable[[random.Random, int], Drawn]


def _signed(value: int) -> str:
    return f"+ {value}" if value >= 0 else f"- {-value}"


def _fraction(value: Fraction) -> str:
    sign = "-" if value < 0 else ""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _polynomial(*coefficients: int) -> str:
    """Coefficients from the highest power down, in x."""
    terms = ""
    top = len(coefficients) - 1
    for power, c in zip(range(top, -1, -1), coefficients, strict=True):
        if c == 0:
            continue
        x = "" if power == 0 else "x" if power == 1 else f"x^{power}"
        size = "" if abs(c) == 1 and x else str(abs(c))
        terms += (f" {'-' if c < 0 else '+'} " if terms else "-" if c < 0 else "") + size + x
    return terms or "0"


def _surd(square: int) -> str:
    outside = max(k for k in range(1, math.isqrt(square) + 1) if square % (k * k) == 0)
    inside = square // (outside * outside)
    root = f"\\sqrt{{{inside}}}" if inside > 1 else ""
    return f"{outside if outside > 1 or not root else ''}{root}"


def _matrix(rows: list[list[int]]) -> str:
    body = " \\\\ ".join(" & ".join(map(str, row)) for row in rows)
    return f"\\begin{{pmatrix}} {body} \\end{{pmatrix}}"


def _order_of_operations(rng: random.Random, level: int) -> Drawn:
    a, b, c = rng.randint(1, 10 * level), rng.randint(2, 9), rng.randint(2, 3 + level)
    ask = rng.choice(["Compute $%d + %d \\cdot %d$.", "Evaluate $%d + %d \\cdot %d$.", "What is $%d + %d \\cdot %d$?"])
    return Drawn(
        numbers=(a, b, c),
        problem=ask % (a, b, c),
        solution=f"First, ${b} \\cdot {c} = {b * c}$. Then ${a} + {b * c} = \\boxed{{{a + b * c}}}$.",
        answer=str(a + b * c),
    )


def _percent(rng: random.Random, level: int) -> Drawn:
    whole = rng.choice([10, 20, 25, 50] if level < 3 else [20, 25, 50, 200])
    part = rng.randint(1, whole - 1) if whole < 200 else 2 * rng.randint(1, 99)
    share = part * 100 // whole
    scaled = f"{part} \\cdot {100 // whole}" if whole < 200 else f"{part} / 2"
    return Drawn(
        numbers=(part, whole),
        problem=rng.choice(
            ["What percent of $%d$ is $%d$?", "Out of $%d$ marbles, $%d$ are red. What percent is that?"]
        )
        % (whole, part),
        solution=f"We have $\\frac{{{part}}}{{{whole}}} = \\frac{{{scaled}}}{{100}}$, "
        f"so it is $\\boxed{{{share}\\%}}$.",
        answer=f"{share}\\%",
    )


def _fraction_sum(rng: random.Random, level: int) -> Drawn:
    b, d = rng.randint(2, 3 + level), rng.randint(2, 3 + level)
    a, c = rng.randint(1, b + 2), rng.randint(1, d + 2)
    total = Fraction(a, b) + Fraction(c, d)
    step = f"\\frac{{{a * d} + {c * b}}}{{{b * d}}} = \\frac{{{a * d + c * b}}}{{{b * d}}}"
    ask = rng.choice(["Compute $%s + %s$ in lowest terms.", "Simplify $%s + %s$."])
    return Drawn(
        numbers=(a, b, c, d),
        problem=ask % (f"\\frac{{{a}}}{{{b}}}", f"\\frac{{{c}}}{{{d}}}"),
        solution=f"With a common denominator the sum is ${step} = \\boxed{{{_fraction(total)}}}$.",
        answer=_fraction(total),
    )


def _linear_equation(rng: random.Random, level: int) -> Drawn:
    a, x = rng.randint(2, 9), rng.randint(-2 * level, 3 * level)
    b = rng.choice([-1, 1]) * rng.randint(1, 5 * level)
    c = a * x + b
    ask = rng.choice(["Solve for $x$: $%dx %s = %d$.", "If $%dx %s = %d$, what is $x$?"])
    return Drawn(
        numbers=(a, b, c),
        problem=ask % (a, _signed(b), c),
        solution=f"We get ${a}x = {c} {_signed(-b)} = {c - b}$, so $x = {c - b} / {a} = \\boxed{{{x}}}$.",
        answer=str(x),
    )


def _function_value(rng: random.Random, level: int) -> Drawn:
    a, b, c = rng.randint(1, 1 + level // 2), rng.randint(-6, 6), rng.randint(-9, 9)
    k = rng.randint(-2 - level // 3, 3 + level // 2)
    square, linear = a * k * k, b * k
    value = square + linear + c
    return Drawn(
        numbers=(a, b, c, k),
        problem=f"Let $f(x) = {_polynomial(a, b, c)}$. "
        + rng.choice(["Find $f(%d)$.", "What is the value of $f(%d)$?"]) % k,
        solution=f"We compute $f({k}) = {square} {_signed(linear)} {_signed(c)} = {square + linear} {_signed(c)} "
        f"= \\boxed{{{value}}}$.",
        answer=str(value),
    )


def _interval(rng: random.Random, level: int) -> Drawn:
    shift = rng.choice([-1, 1]) * rng.randint(1, 2 + 2 * level)
    low = rng.randint(-3 * level, 3 * level)
    high = low + rng.randint(1, 3 * level)
    left, right = rng.choice([("\\le", "["), ("<", "(")]), rng.choice([("\\le", "]"), ("<", ")")])
    answer = f"{left[1]}{low - shift},{high - shift}{right[1]}"
    return Drawn(
        numbers=(low, high, shift, left[1] == "[", right[1] == "]"),
        problem=f"Solve ${low} {left[0]} x {_signed(shift)} {right[0]} {high}$. Express your answer in interval "
        "notation.",
        solution=f"Adding ${-shift}$ gives ${low - shift} {left[0]} x {right[0]} {high - shift}$, "
        f"so the answer is $\\boxed{{{answer}}}$.",
        answer=answer,
    )


def _product(rng: random.Random, level: int) -> Drawn:
    a, b = (rng.choice([-1, 1]) * rng.randint(1, 4 + level) for _ in range(2))
    answer = _polynomial(1, a + b, a * b)
    return Drawn(
        numbers=(a, b),
        problem=rng.choice(["Expand $(x %s)(x %s)$.", "Expand the product $(x %s)(x %s)$."]) % (_signed(a), _signed(b)),
        solution=f"The sum is ${a} {_signed(b)} = {a + b}$ and the product is ${a} \\cdot {b} = {a * b}$. "
        f"So we get $\\boxed{{{answer}}}$.",
        answer=answer,
    )


def _polynomial_sum(rng: random.Random, level: int) -> Drawn:
    size = 3 * level
    p, q = ([rng.randint(1, 9), rng.randint(-size, size), rng.randint(-size, size)] for _ in range(2))
    total = _polynomial(*(x + y for x, y in zip(p, q, strict=True)))
    return Drawn(
        numbers=(*p, *q),
        problem=f"Simplify $({_polynomial(*p)}) + ({_polynomial(*q)})$.",
        solution=f"The coefficients are ${p[0]} {_signed(q[0])} = {p[0] + q[0]}$, ${p[1]} {_signed(q[1])} = "
        f"{p[1] + q[1]}$ and ${p[2]} {_signed(q[2])} = {p[2] + q[2]}$. So we get $\\boxed{{{total}}}$.",
        answer=total,
    )


def _larger_root(rng: random.Random, level: int) -> Drawn:
    low = rng.randint(-3 - level, 3 + level)
    high = low + rng.randint(1, 3 + level)
    factors = f"(x {_signed(-low)})(x {_signed(-high)})"
    return Drawn(
        numbers=(low, high),
        problem=f"Find the larger root of ${_polynomial(1, -low - high, low * high)} = 0$.",
        solution=f"It factors as ${factors} = 0$. The roots are ${low}$ and ${high}$, so the larger is "
        f"$\\boxed{{{high}}}$.",
        answer=str(high),
    )


def _remainder_theorem(rng: random.Random, level: int) -> Drawn:
    b, c = rng.randint(-2 * level, 2 * level), rng.randint(-9, 9)
    a = rng.choice([-1, 1]) * rng.randint(1, 2 + level // 2)
    value = a * a + b * a + c
    return Drawn(
        numbers=(a, b, c),
        problem=f"What is the remainder when ${_polynomial(1, b, c)}$ is divided by $x {_signed(-a)}$?",
        solution=f"It is the value at $x = {a}$, which is ${a * a} {_signed(b * a)} {_signed(c)} = "
        f"{a * a + b * a} {_signed(c)} = \\boxed{{{value}}}$.",
        answer=str(value),
    )


def _hypotenuse(rng: random.Random, level: int) -> Drawn:
    a, b = rng.randint(1, 4 + 2 * level), rng.randint(1, 4 + 2 * level)
    square = a * a + b * b
    return Drawn(
        numbers=(a, b),
        problem=f"A right triangle has legs of length ${a}$ and ${b}$. What is the length of the hypotenuse?",
        solution=f"It is $\\sqrt{{{a}^2 + {b}^2}} = \\sqrt{{{a * a} + {b * b}}} = \\sqrt{{{square}}} = "
        f"\\boxed{{{_surd(square)}}}$.",
        answer=_surd(square),
    )


def _midpoint(rng: random.Random, level: int) -> Drawn:
    size = 2 + 2 * level
    a, b, c, d = (rng.randint(-size, size) for _ in range(4))
    x, y = _fraction(Fraction(a + c, 2)), _fraction(Fraction(b + d, 2))
    answer = f"\\left( {x}, {y} \\right)"
    return Drawn(
        numbers=(a, b, c, d),
        problem=f"Find the midpoint of the segment with endpoints $({a},{b})$ and $({c},{d})$.",
        solution=f"The sums are ${a} {_signed(c)} = {a + c}$ and ${b} {_signed(d)} = {b + d}$. "
        f"Half of each gives $\\boxed{{{answer}}}$.",
        answer=answer,
    )


def _third_angle(rng: random.Random, level: int) -> Drawn:
    step = (30, 10, 5, 1, 1)[level - 1]
    a = step * rng.randint(1, 90 // step)
    b = step * rng.randint(1, (170 - a) // step)
    return Drawn(
        numbers=(a, b),
        problem=f"Two angles of a triangle measure ${a}$ and ${b}$ degrees. How many degrees is the third angle?",
        solution=f"The two add up to ${a} + {b} = {a + b}$. The third is $180 - {a + b} = \\boxed{{{180 - a - b}}}$.",
        answer=str(180 - a - b),
    )


def _common_divisor(rng: random.Random, level: int) -> Drawn:
    common = rng.randint(1, 3 + 2 * level)
    a, b = common * rng.randint(1, 3 + 2 * level), common * rng.randint(1, 3 + 2 * level)
    steps, (p, q) = [], (max(a, b), min(a, b))
    while q:
        steps.append(f"${p} = {p // q} \\cdot {q} + {p % q}$")
        p, q = q, p % q
    return Drawn(
        numbers=(a, b),
        problem=rng.choice(["What is the greatest common divisor of $%d$ and $%d$?", "Find $\\gcd(%d, %d)$."]) % (a, b),
        solution=f"We have {', '.join(steps)}. So it is $\\boxed{{{p}}}$.",
        answer=str(p),
    )


def _remainder(rng: random.Random, level: int) -> Drawn:
    m, n = rng.randint(3, 5 + level), rng.randint(10, 10 + 15 * level)
    return Drawn(
        numbers=(n, m),
        problem=rng.choice(["What is the remainder when $%d$ is divided by $%d$?", "Find $%d$ modulo $%d$."]) % (n, m),
        solution=f"Since ${n // m} \\cdot {m} = {n - n % m}$, the remainder is ${n} - {n - n % m} = "
        f"\\boxed{{{n % m}}}$.",
        answer=str(n % m),
    )


def _base(rng: random.Random, level: int) -> Drawn:
    base, n = rng.randint(3, 3 + level), rng.randint(5, 10 + 8 * level)
    steps, digits, rest = [], "", n
    while rest:
        steps.append(f"${rest} = {rest // base} \\cdot {base} + {rest % base}$")
        digits = str(rest % base) + digits
        rest //= base
    return Drawn(
        numbers=(n, base),
        problem=f"Write ${n}$ in base ${base}$.",
        solution=f"We have {', '.join(steps)}. So it is $\\boxed{{{digits}_{{{base}}}}}$.",
        answer=f"{digits}_{{{base}}}",
    )


def _pairs(rng: random.Random, level: int) -> Drawn:
    n = rng.randint(3, 4 + 6 * level)
    thing = rng.choice(["books", "cards", "players", "flowers", "cities", "songs", "coins", "stamps"])
    return Drawn(
        numbers=(n, len(thing), ord(thing[0])),
        problem=f"In how many ways can $2$ {thing} be chosen from ${n}$ {thing}?",
        solution=f"There are $\\frac{{{n} \\cdot {n - 1}}}{{2}} = \\frac{{{n * (n - 1)}}}{{2}} = "
        f"\\boxed{{{n * (n - 1) // 2}}}$ ways.",
        answer=str(n * (n - 1) // 2),
    )


def _probability(rng: random.Random, level: int) -> Drawn:
    red, blue = rng.randint(1, 2 + 3 * level), rng.randint(1, 2 + 3 * level)
    chance = _fraction(Fraction(red, red + blue))
    return Drawn(
        numbers=(red, blue),
        problem=f"A bag holds ${red}$ red and ${blue}$ blue balls. One ball is drawn at random. "
        "What is the probability that it is red?",
        solution=f"There are ${red} + {blue} = {red + blue}$ balls, so it is $\\frac{{{red}}}{{{red + blue}}} = "
        f"\\boxed{{{chance}}}$.",
        answer=chance,
    )


def _determinant(rng: random.Random, level: int) -> Drawn:
    size = 1 + level
    a, b, c, d = (rng.randint(-size, size) for _ in range(4))
    return Drawn(
        numbers=(a, b, c, d),
        problem=f"Compute the determinant of ${_matrix([[a, b], [c, d]])}$.",
        solution=f"It is ${a} \\cdot {d} - {b} \\cdot {c} = {a * d} {_signed(-b * c)} = \\boxed{{{a * d - b * c}}}$.",
        answer=str(a * d - b * c),
    )


def _matrix_sum(rng: random.Random, level: int) -> Drawn:
    size = 2 * level
    p, q = ([rng.randint(-size, size) for _ in range(4)] for _ in range(2))
    total = _matrix([[p[0] + q[0], p[1] + q[1]], [p[2] + q[2], p[3] + q[3]]])
    left, right = _matrix([p[:2], p[2:]]), _matrix([q[:2], q[2:]])
    return Drawn(
        numbers=(*p, *q),
        problem=f"Compute ${left} + {right}$.",
        solution=f"Adding entry by entry gives $\\boxed{{{total}}}$.",
        answer=total,
    )


def _dot_product(rng: random.Random, level: int) -> Drawn:
    size = 2 + level
    a, b, c, d = (rng.randint(-size, size) for _ in range(4))
    left, right = (f"\\begin{{pmatrix}} {x} \\\\ {y} \\end{{pmatrix}}" for x, y in ((a, b), (c, d)))
    return Drawn(
        numbers=(a, b, c, d),
        problem=f"Find the dot product of ${left}$ and ${right}$.",
        solution=f"It is ${a} \\cdot {c} + {b} \\cdot {d} = {a * c} {_signed(b * d)} = \\boxed{{{a * c + b * d}}}$.",
        answer=str(a * c + b * d),
    )


FAMILIES: dict[str, tuple[Family, ...]] = {
    "Prealgebra": (_order_of_operations, _percent, _fraction_sum),
    "Algebra": (_linear_equation, _function_value, _interval, _product),
    "Intermediate Algebra": (_polynomial_sum, _larger_root, _remainder_theorem),
    "Geometry": (_hypotenuse, _midpoint, _third_angle),
    "Number Theory": (_common_divisor, _remainder, _base),
    "Counting & Probability": (_pairs, _probability),
    "Precalculus": (_determinant, _matrix_sum, _dot_product),
}


def draw_problems(seed: int) -> Iterator[tuple[str, dict[str, str | int]]]:
    """Endless problems as (identity, record); a record has MATH-500's fields but for `unique_id`."""
    rng = random.Random(seed)
    families = [(subject, family) for subject, members in FAMILIES.items() for family in members]
    while True:
        subject, family = rng.choice(families)
        level = rng.randint(1, 5)
        drawn = family(rng, level)
        yield (
            f"{family.__name__}{drawn.numbers}",
            {
                "problem": drawn.problem,
                "solution": drawn.solution,
                "answer": drawn.answer,
                "subject": subject,
                "level": level,
            },
        )


def demo_problems() -> dict[str, dict[str, str | int]]:
    """The 500 bundled problems, by identity: all distinct, ids by subject as MATH-500 has them."""
    chosen: dict[str, dict[str, str | int]] = {}
    for identity, record in draw_problems(DEMO_SEED):
        if identity not in chosen:
            folder = str(record["subject"]).lower().replace(" & ", "_and_").replace(" ", "_")
            chosen[identity] = {**record, "unique_id": f"demo/{folder}/{len(chosen)}.json"}
        if len(chosen) == DEMO_SIZE:
            return chosen
    raise AssertionError("draw_problems never ends")


def main() -> None:
    """Write the bundled problems to standard output as JSONL: `python -m tools.demo.problems`."""
    for record in demo_problems().values():
        print(json.dumps(record, ensure_ascii=False))


if __name__ == "__main__":
    main()
