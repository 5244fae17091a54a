"""The choices of the adversary of an audit, its objective, and the start points of its ascents.

They start at random points, and at points with the structure that bounds are attained at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.func import functional_call

from ..certify.operators import Convolution, Operator
from ..clip.clipping import as_clipped
from ..nn.constrained import constraints_of
from ..train.module import LipschitzModule
from .moves import Domain, unit

INPUT, TARGET = "input", "target"  # blocks of a point that are no parameters; no parameter has such a name

TargetKind = Literal["class", "pixel", "sign", "probability", "probabilities", "vector"]
Start = Literal["identity", "smooth", "random", "corner"]
STARTS: tuple[Start, ...] = get_args(Start)
_NOISE = 0.05  # what structured starts get of a random one: no slope is exactly 0 there


@dataclass(frozen=True)
class Admissible:
    """The choices of the adversary besides the weights and the example.

    Args:
        target: what the loss takes: a class index, one a pixel of logits with the classes first, -1 or 1, a number
            in [0, 1], one for each output, or a vector like the output.
        target_norm: bound of the norm of a vector; infinite if the loss has none.
        vocabulary: how many tokens there are, or how many for each entry, if examples are tokens.
    """

    target: TargetKind = "class"
    target_norm: float = math.inf
    vocabulary: int | tuple[int, ...] | None = None

    def tokens(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw examples of tokens, of this shape, whose last axes are those of an example."""
        if isinstance(self.vocabulary, tuple):
            drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
            return (drawn.view(-1, len(self.vocabulary)) * torch.tensor(self.vocabulary)).long().view(shape)
        return torch.randint(self.vocabulary or 1, shape, generator=generator)

    def bounded(self, target: Tensor) -> Tensor:
        """Return one target within the norm."""
        return target / max(1.0, float(target.norm()) / self.target_norm)


@dataclass(frozen=True)
class Point:
    """A choice of the adversary. `x` and `target` have a batch axis of length 1; `mask` seeds what is random."""

    x: Tensor
    target: Tensor
    weights: Mapping[str, Tensor]
    mask: int = 0


@dataclass(frozen=True)
class Look:
    """An objective at a point: its value, and its slope in every block; squares of all gradient norms."""

    value: float
    slopes: Mapping[str, Tensor]
    squares: Mapping[str, float]
    output: Tensor


class Terrain:
    """The gradient norms of a module as functions of the adversary's choice. All in float64, on the CPU."""

    def __init__(self, module: LipschitzModule, admissible: Admissible, generator: torch.Generator) -> None:
        self.module, self.admissible, self.generator = module, admissible, generator
        self.bounds = module.gradient_bounds()
        self.domains = {name: Domain(*pair) for name, pair in constraints_of(module).items()}
        # Where nothing bounds inputs, they are of the length of usual ones.
        usual = 3 * math.sqrt(math.prod(module.input_shape))
        self.reach = module.input_norm if math.isfinite(module.input_norm) else usual

    def output(self, point: Point) -> Tensor:
        """Return the output, [1, …]."""
        with torch.random.fork_rng(devices=[]), self.module.gate.bypassed():
            torch.default_generator.manual_seed(point.mask)
            output: Tensor = functional_call(self.module, dict(point.weights), (point.x,))
        return output

    def gradients(self, point: Point, curved: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output and the gradient of the loss in every trained parameter."""
        output = self.output(point)
        loss = self.module.per_example_loss(output, point.target).sum()
        return output, self.in_weights(loss, point, curved)

    def in_weights(self, loss: Tensor, point: Point, curved: bool) -> dict[str, Tensor]:
        """Return the gradient of a loss in every trained parameter; the graph of the loss stays."""
        trained = [point.weights[name] for name in self.bounds]
        found = torch.autograd.grad(
            loss, trained, retain_graph=True, create_graph=curved, allow_unused=True, materialize_grads=True
        )
        return dict(zip(self.bounds, found, strict=True))

    def _tracked(self, point: Point) -> Point:
        """Return the point with everything that can move by a little ready to be differentiated in."""
        return replace(
            point,
            x=point.x if self.admissible.vocabulary else _tracked(point.x),
            target=_tracked(point.target) if self.admissible.target == "vector" else point.target,
            weights={name: _tracked(weight) for name, weight in point.weights.items()},
        )

    def squares(self, point: Point) -> dict[str, float]:
        """Return the squared norm of the gradient of every trained parameter."""
        _, gradients = self.gradients(self._tracked(point), curved=False)
        return {name: float(gradient.square().sum()) for name, gradient in gradients.items()}

    def certified_squares(self, point: Point) -> dict[str, float]:
        """Return `squares` at the nearest weights that are certified to lie in their sets."""
        self.settle(point)
        weights = {name: parameter.detach() for name, parameter in self.module.named_parameters()}
        squares = self.squares(replace(point, weights=weights))
        return squares | self._clipped_squares(point)

    def settle(self, point: Point) -> None:
        """Give the module the nearest weights that are certified to lie in their sets."""
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(point.weights[name])
        self.module.forget_certificates()  # to come as near as float64 certifies
        self.module.project_()

    def _clipped_squares(self, point: Point) -> dict[str, float]:
        """Return the squared norms of the gradients that a backward pass leaves of clipped parameters."""
        if not self.module.clips:
            return {}
        self.module.guard_layers()
        self.module.gate.reset()
        self.module.zero_grad()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(point.mask)
            self.module.criterion(self.module(point.x), point.target).backward()  # type: ignore[no-untyped-call]
        parameters = dict(self.module.named_parameters())
        return {name: _square(parameters[name].grad) for name in self.module.clipped_parameters}

    def counted(self, squares: Mapping[str, float]) -> dict[str, float]:
        """Return squared norms as the groups of the module are clipped to, of those before."""
        found = dict(squares)
        for group in self.module.clips:
            norm = math.sqrt(math.fsum(squares[name] for name in group.parameters))
            factor = float(group.clip(1.0).scaling(1, None).factors(torch.tensor(norm, dtype=torch.float64)))
            found.update((name, squares[name] * factor**2 if factor else 0.0) for name in group.parameters)
        return found

    def value(self, point: Point, objective: Sequence[str]) -> float:
        """Return the squared norm of the gradient in the parameters of `objective`; 0 where it is not finite."""
        squares = self.squares(point)
        value = math.fsum(squares[name] for name in objective)
        return value if math.isfinite(value) else 0.0

    def look(self, point: Point, objective: Sequence[str]) -> Look:
        """Return value and slopes of an objective."""
        point = self._tracked(point)
        output, gradients = self.gradients(point, curved=True)
        squares = {name: gradient.square().sum() for name, gradient in gradients.items()}
        value = torch.stack([squares[name] for name in objective]).sum()
        blocks = {name: block for name, block in _blocks(point).items() if block.requires_grad}
        slopes: Mapping[str, Tensor] = {}
        if value.requires_grad:
            found = torch.autograd.grad(value, list(blocks.values()), allow_unused=True, materialize_grads=True)
            slopes = {name: slope.nan_to_num(0, 0, 0) for name, slope in zip(blocks, found, strict=True)}
        norms = {name: float(square.detach()) for name, square in squares.items()}
        return Look(float(value.detach()), slopes, norms, output.detach())

    def moved(self, point: Point, slopes: Mapping[str, Tensor], sizes: Mapping[str, float]) -> Point:
        """Go from a point along the slopes of the blocks that `sizes` names."""
        weights = dict(point.weights)
        x, target = point.x, point.target
        for name, size in sizes.items():
            if name == INPUT:
                x = self.bounded_input(x / self.reach + size * unit(slopes[name]))
            elif name == TARGET:
                target = self.bounded_target(target + size * self._target_scale(target) * unit(slopes[name]))
            else:
                weights[name] = self.domains[name].step(weights[name], slopes[name], size)
        return replace(point, x=x, target=target, weights=weights)

    def bounded_input(self, direction: Tensor) -> Tensor:
        """Return the input in a direction whose norm is so little below its bound that no rounding clips it."""
        return self.reach * (1 - 1e-12 - direction.numel() * 2.0**-50) * unit(direction)

    def sequences(self, x: Tensor, count: int) -> Iterator[Tensor]:
        """Yield `count` other sequences of tokens: one changed, or all made equal."""
        if self.admissible.vocabulary is None:
            return
        limits = torch.as_tensor(self.admissible.vocabulary).expand(x.numel()).view_as(x)
        for attempt in range(count):
            token = torch.randint(int(limits.max()), (), generator=self.generator)
            other = torch.full_like(x, int(token)) if attempt % 2 else x.clone()
            other.view(-1)[torch.randint(x.numel(), (), generator=self.generator)] = token
            yield other.minimum(limits - 1)

    def _target_scale(self, target: Tensor) -> float:
        bound = self.admissible.target_norm
        return bound if math.isfinite(bound) else 1 + float(target.norm())

    def bounded_target(self, target: Tensor) -> Tensor:
        """Return the target within its norm."""
        return self.admissible.bounded(target)

    def targets(self, output: Tensor, count: int) -> Iterator[Tensor]:
        """Yield `count` targets that promise a large gradient at an output, the most promising first."""
        kind = self.admissible.target
        if kind in ("class", "pixel"):
            yield from self._classes(output, count)
        elif kind == "vector":
            scale = min(self.admissible.target_norm, 10 * (1 + float(output.norm())))
            yield from (-scale * unit(output), -scale * unit(output.sign() + (output == 0)))[:count]
        elif kind == "probabilities":
            yield from ((output < 0).to(output.dtype), torch.ones_like(output), torch.zeros_like(output))[:count]
        else:
            extremes = (1.0, -1.0 if kind == "sign" else 0.0)
            yield from (output.new_full(output.shape[:1], value) for value in extremes)

    def _classes(self, output: Tensor, count: int) -> Iterator[Tensor]:
        """Yield classes, those first whose loss is steepest in the output; at every position the same rank."""
        axis = 1 if self.admissible.target == "pixel" else output.dim() - 1
        classes, positions = output.shape[axis], output.shape[1:axis] + output.shape[axis + 1 :]
        every = torch.arange(classes).reshape(-1, *(1,) * len(positions)).expand(classes, *positions)
        outputs = output.detach().expand(classes, *output.shape[1:]).clone().requires_grad_()
        losses = self.module.per_example_loss(outputs, every).sum()
        (slopes,) = torch.autograd.grad(losses, outputs)
        ranked = slopes.norm(dim=axis).argsort(dim=0, descending=True)
        yield from (ranked[rank][None] for rank in range(min(count, classes)))


def whole_bound(module: LipschitzModule) -> float:
    """Return the bound of the whole gradient of an example; the parameters of a group are bounded together."""
    bounds = module.gradient_bounds().items()
    alone = [bound for name, bound in bounds if name not in module.clipped_parameters]
    return math.hypot(*alone, *(group.length for group in module.clips))


def clipped_gradient(
    module: LipschitzModule, names: Iterable[str], x: Tensor, target: Tensor
) -> dict[str, Tensor]:
    """Return the gradient of the loss of an example [1, …] in parameters by name, each group clipped."""
    parameters = {name: module.get_parameter(name) for name in names}
    loss = module.per_example_loss(module(x), target).sum()
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
    return as_clipped(dict(zip(parameters, found, strict=True)), module.clips)


def _square(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else float(gradient.double().square().sum())


def _blocks(point: Point) -> dict[str, Tensor]:
    return {INPUT: point.x, TARGET: point.target, **point.weights}


def _tracked(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


# --- starts ---


def draw(terrain: Terrain, start: Start) -> Point:
    """Return a start.

    identity: weights that hand on equal entries, kernels by as many taps as their stride; an example of such.
    smooth: kernels of equal taps, orthogonal weights, an example of equal entries.
    random: everything random.
    corner: as identity, with the first tap of a kernel; an example that is random.
    """
    domains, generator = terrain.domains, terrain.generator
    parameters = dict(terrain.module.named_parameters())
    weights = {name: _weight(domains[name], tuple(p.shape), start, generator) for name, p in parameters.items()}
    x = _example(terrain, start)
    mask = int(torch.randint(2**31, (), generator=generator))
    with torch.no_grad():
        output = terrain.output(Point(x, torch.zeros(()), weights, mask))
    return Point(x, next(terrain.targets(output, 1)), weights, mask)


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _example(terrain: Terrain, start: Start) -> Tensor:
    shape, generator = (1, *terrain.module.input_shape), terrain.generator
    entries = terrain.admissible.vocabulary
    if entries is not None:
        free = start in ("random", "corner") or isinstance(entries, tuple)
        return terrain.admissible.tokens(shape if free else (1,), generator).expand(shape).clone()
    equal = unit(torch.ones(shape, dtype=torch.float64))
    noise = unit(_normal(shape, generator))
    return terrain.bounded_input(noise if start in ("random", "corner") else equal + _NOISE * noise)


def _weight(domain: Domain, shape: tuple[int, ...], start: Start, generator: torch.Generator) -> Tensor:
    noise = _normal(shape, generator)
    if len(shape) < 2:
        return domain.into(unit(noise if start == "random" else 1 + _NOISE * noise))
    pattern = _PATTERNS[start](shape, noise, domain.operator)
    return domain.into(_spread(pattern, shape) + _NOISE * _spread(noise, shape))


def _spread(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return ``weight`` at the Frobenius norm of an orthogonal matrix of its size."""
    return math.sqrt(min(shape[:2])) * unit(weight)


def _diagonal(shape: tuple[int, ...], taps: tuple[slice, ...]) -> Tensor:
    """Return channel i to channel i, through the same taps."""
    rows, columns = shape[:2]
    weight = torch.zeros(shape, dtype=torch.float64)
    for entry in range(max(rows, columns)):
        weight[entry % rows, entry % columns][taps] = 1.0
    return weight


def _identity(shape: tuple[int, ...], _: Tensor, operator: Operator) -> Tensor:
    if not isinstance(operator, Convolution):
        return _diagonal(shape, tuple(slice(k // 2, k // 2 + 1) for k in shape[2:]))
    firsts = [low // d for (low, _), d in zip(operator.padding, operator.dilation, strict=True)]
    return _diagonal(shape, tuple(slice(t, t + s) for t, s in zip(firsts, operator.stride, strict=True)))


def _corner(shape: tuple[int, ...], _: Tensor, __: Operator) -> Tensor:
    return _diagonal(shape, tuple(slice(1) for _ in shape[2:]))


def _smooth(shape: tuple[int, ...], noise: Tensor, _: Operator) -> Tensor:
    matrix = noise.flatten(2).select(2, 0) if len(shape) > 2 else noise
    return _orthogonal(matrix).reshape(*shape[:2], *(1,) * len(shape[2:])).expand(shape)


def _random(shape: tuple[int, ...], noise: Tensor, _: Operator) -> Tensor:
    return _orthogonal(noise.flatten(1)).reshape(shape)


def _orthogonal(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    product: Tensor = left @ right
    return product


_PATTERNS = {"identity": _identity, "smooth": _smooth, "random": _random, "corner": _corner}
