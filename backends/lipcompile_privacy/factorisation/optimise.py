"""The coefficients of least error, found at compile time by L-BFGS with analytic gradients.

Only privacy is certified (`Strategy.sensitivity`). That an optimum was found is not, and matters for accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import FactorisationError
from .participation import Cyclic, MinSeparation, Participation, check_positive
from .strategies import BandedToeplitz, Blt, Objective, Strategy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Loss = Callable[[Array], tuple[float, Array]]  # logarithm of the squared error, and its gradient

_MOST_BUFFERS = 6
_WORTH_A_BUFFER = 1.005


def optimal_banded(
    steps: int, bands: int, participation: Participation | None = None, objective: Objective = "mean"
) -> BandedToeplitz:
    """Return the banded Toeplitz strategy of least error of prefix sums.

    McKenna 2024, "Scaling up the banded matrix factorization mechanism for differentially private ML":
    minimise ‖c‖²·(mean or max of the squared row norms of AC⁻¹) over c, with c_0 = 1.

    Args:
        steps: n.
        bands: 1 (independent noise) to n.
        participation: by default `MinSeparation()`, that is, once. One example must not take part again within
            `bands` steps: then the best c is the same for all.
        objective: of squared errors, their "mean" or their "max".

    Raises:
        FactorisationError: numbers out of range.
    """
    import numpy as np

    check_positive("steps", steps)
    check_positive("bands", bands)
    pattern = MinSeparation() if participation is None else participation
    if isinstance(pattern, MinSeparation) and pattern.count(steps) > 1 and pattern.separation < bands:
        raise FactorisationError(
            f"{bands} bands, but one example may take part again after {pattern.separation} steps: use at most "
            f"{pattern.separation} bands, or optimal_blt"
        )
    weights = _weights(steps, objective)
    root = _root_coefficients(bands)
    found = _minimise(partial(_banded_loss, weights=weights), root[1:], [(0.0, 1.0)] * (bands - 1))
    # Non-increasing, as the best are: what the minimiser leaves of rounding there goes.
    coefficients = np.minimum.accumulate(np.concatenate([[1.0], found]))
    return BandedToeplitz(tuple(coefficients.tolist()), steps, pattern)


def optimal_blt(
    steps: int,
    min_separation: int = 1,
    participations: int = 1,
    buffers: int | None = None,
    objective: Objective = "mean",
) -> Blt:
    """Return the buffered linear Toeplitz strategy of least error of prefix sums under (k, b)-min-separation.

    McMahan et al. 2024: minimise sensitivity²·(mean or max of the squared row norms of AC⁻¹).

    Args:
        steps: n.
        min_separation: b, least number of steps between two participations of one example.
        participations: k, their largest number.
        buffers: by default as many as still save 0.5 % of the squared error each, at most 6.
        objective: of squared errors, their "mean" or their "max".

    Raises:
        FactorisationError: numbers out of range.
    """
    check_positive("steps", steps)
    pattern = MinSeparation(min_separation, participations)
    if buffers is not None:
        check_positive("buffers", buffers)
        return _blt(steps, pattern, buffers, objective)
    best = Blt((), (), steps, pattern)
    for count in range(1, _MOST_BUFFERS + 1):
        more = _blt(steps, pattern, count, objective)
        if more.squared_error(objective) * _WORTH_A_BUFFER > best.squared_error(objective):
            break
        best = more
    return best


# --- banded ----------------------------------------------------------------------------------------------------


def _banded_loss(rest: Array, weights: Array) -> tuple[float, Array]:
    """Return log(‖c‖²·Σ_i w_i·b_i²), where b = 1/((1 - x)·c(x)) as a power series, and its gradient.

    From ∂b/∂c_j = -x^j·b/c: with u = b/c, ∂/∂c_j Σ w·b² = -2·Σ_i w_i·b_i·u_{i-j}.
    """
    import numpy as np
    from scipy.signal import lfilter

    coefficients, steps = np.concatenate([[1.0], rest]), len(weights)
    b = lfilter([1.0], coefficients, np.ones(steps))
    u = lfilter([1.0], coefficients, b)
    weighted = weights * b
    error, square = weighted @ b, coefficients @ coefficients
    moved = np.array([weighted[j:] @ u[: steps - j] for j in range(1, len(coefficients))])
    return float(np.log(error * square)), 2 * rest / square - 2 * moved / error


def _root_coefficients(count: int) -> Array:
    """Return the first coefficients of (1 - x)^(-1/2), the optimum for `max` without bands, to begin with."""
    import numpy as np

    index = np.arange(1, count)
    return np.concatenate([[1.0], np.cumprod((2 * index - 1) / (2 * index))])


# --- BLT -------------------------------------------------------------------------------------------------------
#
# c(x) = Π_m (1 - θ̂_m·x)/(1 - θ_m·x) with 1 > θ_1 > θ̂_1 > θ_2 > θ̂_2 > … > 0. Exactly so interlaced, all scales ω
# are positive, sum up to below 1, and C⁻¹ is a BLT with decays θ̂ (Dvijotham et al. 2024, Lemma 5.2). The order is
# kept by what is optimised: logit(θ_1), and the logarithms of the differences of logits from each to the next.


def _blt(steps: int, pattern: MinSeparation, buffers: int, objective: Objective) -> Blt:
    import numpy as np

    loss = partial(_blt_loss, weights=_weights(steps, objective), pattern=pattern)
    bounds = [(-5.0, _LARGEST_LOGIT), *[_LOG_GAPS] * (2 * buffers - 1)]
    found = [_minimise(loss, start, bounds) for start in _starts(steps, pattern, buffers)]
    roots = _interlaced(min(found, key=lambda point: loss(point)[0]))
    decays, inverse = roots[0::2], roots[1::2]
    scales = [
        np.prod(theta - inverse) / np.prod(theta - np.delete(decays, index)) for index, theta in enumerate(decays)
    ]
    return Blt(tuple(decays.tolist()), tuple(map(float, scales)), steps, pattern)


_LARGEST_LOGIT = 20.0
_LOG_GAPS = (-8.0, 3.0)


def _starts(steps: int, pattern: MinSeparation, buffers: int) -> Iterator[Array]:
    """Yield logits at even distances, from about 1 - 1/n or 1 - 1/b downwards: there are local minima."""
    import numpy as np

    for scale in {steps, min(steps, pattern.separation)}:
        top = float(np.log(scale + 2))
        yield np.array([top, *[np.log((top + 1) / (2 * buffers))] * (2 * buffers - 1)])


def _interlaced(point: Array) -> Array:
    import numpy as np

    logits = point[0] - np.concatenate([[0.0], np.cumsum(np.exp(point[1:]))])
    roots: Array = 1 / (1 + np.exp(-logits))
    return roots


def _blt_loss(point: Array, weights: Array, pattern: MinSeparation) -> tuple[float, Array]:
    """Return log(sensitivity²·Σ_i w_i·b_i²), where b = 1/((1 - x)·c(x)), and its gradient.

    From ∂c/∂θ = x·c/(1 - θ·x) and ∂b/∂θ = -x·b/(1 - θ·x); for θ̂ with the other sign.
    """
    import numpy as np
    from scipy.signal import lfilter

    roots = _interlaced(point)
    c = np.zeros(len(weights))
    c[0] = 1.0
    b = np.ones(len(weights))
    for theta, inverse in zip(roots[0::2], roots[1::2], strict=True):
        c, b = lfilter([1, -inverse], [1, -theta], c), lfilter([1, -theta], [1, -inverse], b)
    sums, weighted = _shifted_sums(c, pattern), weights * b
    square, error = sums @ sums, weighted @ b
    by_root = np.empty(len(roots))
    for index, root in enumerate(roots):
        dc, db = lfilter([0, 1], [1, -root], c), lfilter([0, 1], [1, -root], b)
        change = (sums @ _shifted_sums(dc, pattern)) / square - (weighted @ db) / error
        by_root[index] = 2 * change * (-1) ** index
    by_logit = by_root * roots * (1 - roots)
    tails = np.cumsum(by_logit[::-1])[::-1]
    return float(np.log(square * error)), np.concatenate([tails[:1], -tails[1:] * np.exp(point[1:])])


def _shifted_sums(column: Array, pattern: MinSeparation) -> Array:
    sums, separation = column.copy(), pattern.separation
    for shift in range(separation, pattern.count(len(column)) * separation, separation):
        sums[shift:] += column[: len(column) - shift]
    return sums


# --- common ----------------------------------------------------------------------------------------------------


def _weights(steps: int, objective: Objective) -> Array:
    """Return w with Σ w_i·b_i² the mean, or the largest, squared row norm of the matrix of coefficients b."""
    import numpy as np

    if objective == "max":
        return np.ones(steps)
    if objective == "mean":
        return (steps - np.arange(steps)) / steps
    raise FactorisationError(f"unknown objective {objective!r}: use 'mean' or 'max'")


def _minimise(loss: Loss, start: Array, bounds: list[tuple[float, float]]) -> Array:
    from scipy.optimize import minimize

    if not len(start):
        return start
    options: dict[str, Any] = {"maxiter": 2000, "maxfun": 20000, "ftol": 1e-13, "gtol": 1e-9, "maxcor": 30}
    found: Array = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return found


def planned_strategy(correlation: Mapping[str, Any], epochs: int, steps_per_epoch: int) -> Strategy:
    """Return the strategy of least mean squared error for a training of so many epochs and steps.

    =========================================  ====================================================================
    {"kind": "correlated", "bands": b}         `BandedToeplitz` under `Cyclic(b)`: cyclic Poisson sampling
    {"kind": "blt", "buffers": m or None}      `Blt` under `MinSeparation(steps_per_epoch, epochs)`: a fixed order
    =========================================  ====================================================================

    Raises:
        FactorisationError: another kind, or more bands than steps in an epoch (a sampling rate above 1).
    """
    check_positive("epochs", epochs)
    check_positive("steps per epoch", steps_per_epoch)
    steps = epochs * steps_per_epoch
    if correlation.get("kind") == "correlated":
        bands: Any = correlation.get("bands")
        if bands is None:
            raise FactorisationError(
                "without a target epsilon and delta, correlated noise needs a number of bands"
            )
        check_positive("bands", bands)
        if bands > steps_per_epoch:
            raise FactorisationError(
                f"{bands} bands need {bands} batches of different examples, but an epoch has {steps_per_epoch}: "
                "use fewer bands, or smaller batches"
            )
        return optimal_banded(steps, bands, Cyclic(bands))
    if correlation.get("kind") == "blt":
        return optimal_blt(steps, steps_per_epoch, epochs, correlation.get("buffers"))
    raise FactorisationError(
        f"{dict(correlation)!r} does not describe correlated noise: `kind` must be correlated or blt"
    )
