"""Polynomials as numbers: what the rules give as a function of the norm X at the input of a graph.

The coefficients lie in any other domain and are not negative, as X is. A number is a polynomial p(X), the root of
one, or not known to be either. Where a result is no polynomial, the domain takes one that is nowhere below it: a
larger bound is a bound, and rules hold for any bounds of what they read. Inside one rule that argument needs sums,
products, roots and extremes only, so a number that such a step has enlarged is never subtracted, divided by or an
exponent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from operator import add
from typing import Generic

from lipcompile.numbers import Coefficients, Count, N, Numbers, Scalar, Step
from lipcompile.numbers.step import added, changed, multiplied

# Of products that grow faster nothing is kept: those of gates along a sequence would have thousands of terms.
HIGHEST_DEGREE = 8


@dataclass(frozen=True, slots=True)
class Polynomial(Generic[N]):
    """p(X), or √p(X) if `root`; `coefficients` by degree, None if nothing is known.

    exact: whether it equals what it stands for; else it is not below it. enlarged: whether the rule that is being
    evaluated made it so.
    """

    num: Numbers[N]
    coefficients: Coefficients[N] | None
    root: bool = False
    exact: bool = True
    enlarged: bool = False

    @property
    def constant(self) -> N | None:
        """The number that this is whatever X is, None if it depends on X or is not known."""
        if self.root or self.coefficients is None or set(self.coefficients) - {0}:
            return None
        return self.coefficients.get(0, self.num.of(0))

    @property
    def zero(self) -> bool:
        """Whether it is exactly 0."""
        return self.coefficients is not None and not self.coefficients

    @property
    def degree(self) -> float:
        """The growth in X: 1/2 of √X; infinite if not known."""
        if self.coefficients is None:
            return float("inf")
        return max(self.coefficients, default=0) / (2 if self.root else 1)

    def squared(self) -> Polynomial[N]:
        """Return the square."""
        if self.coefficients is None or self.root:
            return replace(self, root=False)
        return replace(self, coefficients=multiplied(self.coefficients, self.coefficients))

    def unknown(self) -> Polynomial[N]:
        """Return what nothing is known of."""
        return Polynomial(self.num, None, exact=False, enlarged=True)

    def __add__(self, other: Polynomial[N] | int) -> Polynomial[N]:
        two = self._lift(other)
        if self.zero or two.zero:
            return two if self.zero else self
        one, two = without_root(self), without_root(two)
        if one.coefficients is None or two.coefficients is None:
            return self.unknown()
        return _like(added(one.coefficients, two.coefficients), one, two)

    __radd__ = __add__

    def __sub__(self, other: Polynomial[N] | int) -> Polynomial[N]:
        return self._of_constants(other, lambda a, b: a - b)

    def __rsub__(self, other: int) -> Polynomial[N]:
        return self._lift(other) - self

    def __mul__(self, other: Polynomial[N] | int) -> Polynomial[N]:
        two = self._lift(other)
        if self.zero or two.zero:
            return Polynomial(self.num, {})
        if self.degree + two.degree > HIGHEST_DEGREE or self.coefficients is None or two.coefficients is None:
            return self.unknown()
        if self.root == two.root:
            return simplified(_like(multiplied(self.coefficients, two.coefficients), self, two, root=self.root))
        return replace(self.squared(), root=True) * replace(two.squared(), root=True)

    __rmul__ = __mul__

    def __truediv__(self, other: Polynomial[N] | int) -> Polynomial[N]:
        two = self._lift(other)
        divisor = None if two.enlarged else two.constant
        if divisor is None or self.coefficients is None:
            return self.unknown()
        by = divisor * divisor if self.root else divisor
        return _like({d: c / by for d, c in self.coefficients.items()}, self, two, root=self.root)

    def __rtruediv__(self, other: int) -> Polynomial[N]:
        return self._lift(other) / self

    def _lift(self, other: Polynomial[N] | int) -> Polynomial[N]:
        if isinstance(other, Polynomial):
            return other
        return Polynomial(self.num, {0: self.num.of(other)} if other else {})

    def _of_constants(self, other: Polynomial[N] | int, operation: Callable[[N, N], N]) -> Polynomial[N]:
        two = self._lift(other)
        left, right = self.constant, two.constant
        if left is None or right is None or self.enlarged or two.enlarged:
            return self.unknown()
        return _like({0: operation(left, right)}, self, two)


def _like(coefficients: Coefficients[N], *of: Polynomial[N], root: bool = False) -> Polynomial[N]:
    """Return a polynomial that is as exact as those that it was made of."""
    exact, enlarged = all(x.exact for x in of), any(x.enlarged for x in of)
    return Polynomial(of[0].num, coefficients, root, exact, enlarged)


def simplified(number: Polynomial[N]) -> Polynomial[N]:
    """Take the root of one term of even degree."""
    if not number.root or number.coefficients is None or len(number.coefficients) > 1:
        return number
    [(degree, coefficient)] = number.coefficients.items()
    if degree % 2:
        return number
    return replace(number, coefficients={degree // 2: number.num.sqrt(coefficient)}, root=False)


def without_root(number: Polynomial[N]) -> Polynomial[N]:
    """Return a polynomial that is not below `number`.

    √(p₂X² + p₁X + p₀) <= sX + r with s = √p₂ and r = max(√p₀, p₁/2s): no coefficient of (sX + r)² is smaller. Of
    two operands of a concatenation, X_i <= a_iX + c_i, that is the triangle inequality in ℝ².
    """
    p, num = number.coefficients, number.num
    if not number.root or p is None:
        return number
    if set(p) - {0, 1, 2} or 2 not in p:
        return number.unknown()
    slope = num.sqrt(p[2])
    offsets = [num.sqrt(p[0])] if 0 in p else []
    offsets += [p[1] / (2 * slope)] if 1 in p else []
    return Polynomial(num, {1: slope, 0: num.maximum(*offsets)}, exact=False, enlarged=True)


@dataclass(slots=True)
class Polynomials(Generic[N]):
    """The domain of polynomials in X over the domain `base`.

    saturated: which operand stands for a minimum of different degrees: the one that grows least, or the one that
    grows most and is smaller near 0. Names that it gives to coefficients begin with `prefix`.
    """

    base: Numbers[N]
    prefix: str
    saturated: bool
    memo: dict[object, object] = field(default_factory=dict)
    _named: int = 0

    def of(self, value: Scalar | int) -> Polynomial[N]:
        return Polynomial(self.base, {} if value == 0 else {0: self.base.of(value)})

    def symbol(self, name: str, value: Scalar | None, meaning: str) -> Polynomial[N]:
        """X_0 is X; L, which every cotangent is a multiple of, is 1; norms of free weights are symbols below."""
        if name == "X_0":
            return Polynomial(self.base, {1: self.base.of(1)})
        if name == "L":
            return self.of(1)
        # A layer of a copy may be called like one outside: u_dense_bias becomes u_repeat_dense_bias.
        letter, _, rest = name.partition("_")
        own = self.base.symbol(f"{letter}_{self.prefix}_{rest}", value, f"{meaning}, in a copy of {self.prefix}")
        return Polynomial(self.base, {0: own})

    def unbounded(self) -> Polynomial[N]:
        return Polynomial(self.base, None, exact=False, enlarged=True)

    def let(self, name: str, value: Polynomial[N], meaning: str) -> Polynomial[N]:
        """Name coefficients where the base finds them long. What a rule has made so far is a bound as it is."""
        if value.coefficients is None:
            return value
        named = {}
        for degree, coefficient in value.coefficients.items():
            self._named += 1
            letter, said = f"c_{self.prefix}_{self._named}", f"coefficient of X^{degree} in the {meaning}"
            named[degree] = self.base.let(letter, coefficient, said)
        return replace(value, coefficients=named, enlarged=False)

    def sum(self, *xs: Polynomial[N]) -> Polynomial[N]:
        return reduce(add, xs)

    def sqrt(self, x: Polynomial[N] | Fraction | int) -> Polynomial[N]:
        """Return √x; a root of a root is not known."""
        if not isinstance(x, Polynomial):
            return Polynomial(self.base, {0: self.base.sqrt(x)} if x else {})
        if x.zero:
            return x
        return x.unknown() if x.root else simplified(replace(x, root=True))

    def exp(self, x: Polynomial[N]) -> Polynomial[N]:
        """Return e^x of a constant."""
        return self._of_constant(x, self.base.exp)

    def expm1(self, x: Polynomial[N]) -> Polynomial[N]:
        """Return e^x - 1 of a constant."""
        return self._of_constant(x, self.base.expm1)

    def _of_constant(self, x: Polynomial[N], function: Callable[[N], N]) -> Polynomial[N]:
        constant = x.constant
        return x.unknown() if constant is None or x.enlarged else _like({0: function(constant)}, x)

    def log(self, x: int) -> Polynomial[N]:
        return Polynomial(self.base, {0: self.base.log(x)})

    def minimum(self, *xs: Polynomial[N]) -> Polynomial[N]:
        """Return the operand of those known that `saturated` prefers, then the simplest.

        Single terms of one degree are compared.
        """
        known = [x for x in xs if x.coefficients is not None]
        if len(known) < 2:
            alone = len(xs) == 1 or not known
            return xs[0] if alone else replace(known[0], exact=False, enlarged=True)
        degrees = {x.degree for x in known}
        wanted = min(degrees) if self.saturated else max(degrees)
        chosen = sorted(
            (x for x in known if x.degree == wanted), key=lambda x: (x.root, len(x.coefficients or ()))
        )
        if len(chosen) < len(known) or any(x.root or len(x.coefficients or ()) != 1 for x in chosen):
            return replace(chosen[0], exact=False, enlarged=True)
        coefficients = [(x.coefficients or {})[int(wanted)] for x in chosen]
        smallest = _like({int(wanted): self.base.minimum(*coefficients)}, *chosen)
        return smallest if len(known) == len(xs) else replace(smallest, exact=False, enlarged=True)

    def maximum(self, *xs: Polynomial[N]) -> Polynomial[N]:
        """Return the polynomial with the largest of each coefficient."""
        plain = [without_root(x) for x in xs] if len(xs) > 1 else list(xs)
        return xs[0].unknown() if any(x.coefficients is None for x in plain) else reduce(self._larger, plain)

    def _larger(self, one: Polynomial[N], two: Polynomial[N]) -> Polynomial[N]:
        first, second = one.coefficients or {}, two.coefficients or {}
        if 0 in first or 0 in second:  # rules take magnitudes, the one place where numbers may be negative
            nothing = {0: self.base.of(0)}
            first, second = {**nothing, **first}, {**nothing, **second}
        both = {d: self.base.maximum(c, second[d]) for d, c in first.items() if d in second}
        larger = _like({**first, **second, **both}, one, two)
        one_term = len(larger.coefficients or {}) <= 1
        return larger if one_term else replace(larger, exact=False, enlarged=True)

    def max_over(self, start: int, stop: int, term: Callable[[Polynomial[N]], Polynomial[N]]) -> Polynomial[N]:
        """Return the largest of constant terms; of other terms nothing is known."""
        sample = term(self.of(start))
        if stop - start == 1 or sample.constant is None or sample.enlarged:
            return sample if stop - start == 1 else sample.unknown()
        return _like({0: self.base.max_over(start, stop, self._of_constants(term))}, sample)

    def supremum(
        self,
        value: Callable[[Polynomial[N]], Polynomial[N]],
        slope: Callable[[Polynomial[N]], Polynomial[N]],
        of: tuple[object, ...] = (),
    ) -> Polynomial[N]:
        """Return the supremum of constant values; of others nothing is known."""
        sample = value(self.of(Fraction(1, 2)))
        if sample.constant is None or sample.enlarged:
            return sample.unknown()
        return _like({0: self.base.supremum(self._of_constants(value), self._of_constants(slope))}, sample)

    def _of_constants(self, term: Callable[[Polynomial[N]], Polynomial[N]]) -> Callable[[N], N]:
        """Return a term that is constant at one place, and so at all, as a function of numbers of the base."""

        def constant(m: N) -> N:
            found = term(Polynomial(self.base, {0: m})).constant
            assert found is not None, "a term that is constant at one place is so at all"
            return found

        return constant

    def power(self, step: Step[Polynomial[N]], count: Count, name: str) -> Step[Polynomial[N]]:
        """Return the power in the base: the step of a part of a graph does not depend on what enters the graph."""

        def constant(number: Polynomial[N]) -> N:
            assert number.constant is not None, "coefficients of a step depend on nothing that enters the graph"
            return number.constant

        raised = self.base.power(changed(step, constant), count, name)
        return changed(raised, lambda c: Polynomial(self.base, {0: c}, exact=raised.exact))
