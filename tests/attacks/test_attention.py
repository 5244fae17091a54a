"""Parts of the rules of attention that no whole rule attains."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from random import Random

import pytest
import torch

from lipcompile.core.record import Extent
from lipcompile.numbers.certified import Certified
from lipcompile.ops.attention import dot_product
from lipcompile.ops.attention.dot_product import DotProduct
from lipcompile.ops.attention.rules import Attention, Sight, contrast, mixing

from . import harness
from .families.attention import balanced, eye, table, witness
from .families.dot_product import use


@pytest.mark.parametrize("second", [-3, 0.5])
def test_two_weights_differ_as_much_as_is_allowed(second: float) -> None:
    """Opposite tokens, the query along them, attain e^(-2s): a smaller s would be wrong."""
    xs = table((2, 0)), table((3, 0), (second, 0))
    case, point = witness(Attention(1), xs, (eye(2, 0.25), eye(2, 0.5), eye(2), eye(2)))
    num = Certified()
    theta = {role: num.of(c.bound) for role, c in case.constraints.items()}
    least = contrast(num, case.site, [b.extent(num) for b in case.bounds], theta).upper
    scores = (point.xs[0] @ point.theta["query"].T) @ (point.xs[1] @ point.theta["key"].T).T / 2**0.5
    weights = torch.softmax(scores[0], 0)
    ratio = float(weights.min() / weights.max())
    assert least <= ratio
    if second == -3:
        assert least == pytest.approx(ratio, rel=1e-12)


@pytest.mark.parametrize("scale", [Fraction(1, 8), -Fraction(1, 8)])
@pytest.mark.parametrize("second", [-3, 0.5])
def test_given_scores_differ_as_much_as_is_allowed(scale: Fraction, second: float) -> None:
    """The same without projections, for a factor of either sign."""
    queries, keys = table((2, 0)), table((3, 0), (second, 0))
    case, point = use(DotProduct(scale), queries, keys, eye(2))
    num = Certified()
    least = dot_product.contrast(num, case.site, [b.extent(num) for b in case.bounds]).upper
    weights = harness.run(case, point)[0]
    assert least <= float(weights.min() / weights.max()) * (1 + 1e-12)
    if second == -3:
        assert least == pytest.approx(float(weights.min() / weights.max()), rel=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_no_matrix_of_weights_is_larger_than_p(causal: bool) -> None:
    """Its norm and the root of its largest column sum, at random points."""
    rng, generator = Random(0), torch.Generator().manual_seed(0)
    for _ in range(200):
        rows, scale = rng.randint(1, 7), rng.choice((0.1, 1.0, 3.0))
        tokens = scale * torch.randn(rows, 2, generator=generator, dtype=torch.float64)
        case, point = witness(Attention(1, causal), (tokens,), (eye(2), eye(2), eye(2), eye(2)))
        weights = _weights(tokens, causal)
        num = Certified()
        theta = {role: num.of(c.bound) for role, c in case.constraints.items()}
        p = mixing(num, case.site, [b.extent(num) for b in case.bounds], theta).upper
        assert float(torch.linalg.matrix_norm(weights, 2)) <= p * (1 + 1e-12)
        assert float(weights.sum(0).max()) <= p**2 * (1 + 1e-12)
        torch.testing.assert_close(weights @ tokens, harness.run(case, point))


def _weights(tokens: torch.Tensor, causal: bool) -> torch.Tensor:
    scores = tokens @ tokens.T / 2**0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
    return scores.softmax(1)


def seen(rows: int, keys: int, *, causal: bool) -> list[int]:
    """c_i: row i sees min(i, k) keys, or all k."""
    return [min(i, keys) if causal else keys for i in range(1, rows + 1)]


@pytest.mark.parametrize("rows", [1, 2, 3, 17, 1000])
@pytest.mark.parametrize("keys", [1, 2, 10, 1000])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_count_every_row_with_no_more_keys_than_it_sees(rows: int, keys: int, causal: bool) -> None:
    seeing = Sight(rows, keys, causal)
    counted = [keys for count, keys in seeing.blocks() for _ in range(count)]
    assert len(counted) == rows
    assert all(own <= count for own, count in zip(counted, seen(rows, keys, causal=causal), strict=True))
    assert len(list(seeing.blocks())) <= 20


def test_certain_heads_do_not_overflow() -> None:
    """s = 10^12: e^(2s) is no number, e^(-2s) is 0."""
    case, _ = balanced(2, Attention(1), Fraction(10**6))
    num = Certified()
    theta = {role: num.of(c.bound) for role, c in case.constraints.items()}
    x = [Extent(*[num.of(1)] * 3)] * 2
    assert mixing(num, case.site, x, theta).upper == pytest.approx(2**0.5)


@pytest.mark.parametrize("causal", [False, True])
def test_what_heads_meet_is_a_sum_over_rows(causal: bool) -> None:
    """Σ_i min(H, c_i) and max c_i, by going through the rows: row i sees min(i, k) keys, or all k."""
    for rows, keys, heads in product(range(1, 7), range(1, 7), range(1, 5)):
        sight, counts = Sight(rows, keys, causal), seen(rows, keys, causal=causal)
        assert sight.met(heads) == sum(min(heads, count) for count in counts)
        assert sight.largest() == max(counts)
