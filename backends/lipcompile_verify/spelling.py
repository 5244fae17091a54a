"""How Python spells a node: with the functions of `lipcompile_torch.runtime` and torch, as these are documented.

A spelling is a format. {x}, {y}: operands. {name}: an attribute, its exact numbers as the nearest doubles, with
`:b` as the largest not above (radii), `:a` as the smallest not below (floors), `:p` as the nearest, but beyond
0.999 as the largest not above (probabilities p, for 1/(1 - p) grows fast near 1). `:+` counts axes with the batch,
`:*` writes a list without parentheses, `:-` nothing (the shape of the parameter says it), `:?key=default` writes
`, key=value` unless all entries are the default. Other names stand in `WORDS`. It is an error if an attribute is
left over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

_NUMBER = re.compile(r"-?[0-9]+(/[0-9]+)?")
_KEEP = "{keep:?keepdim=False}"
_FLOOR = "{floor:a?floor=None}{eps:a?eps=None}"
_STEPS = "{stride:?stride=1}{padding:?padding=0}{dilation:?dilation=1}{groups:?groups=1}"
_KERNEL = "{depth}, {channels}, kernel_size={kernel}, input_size={image}, reads={reads}, taps={taps}" + _STEPS
_REDUCED = {"mean": "mean", "sum": "sum", "max": "amax", "min": "amin", "l1": "abs().sum"}

_OF_TORCH = ("tanh", "sin", "cos", "atan", "asinh", "erf", "sigmoid", "abs", "sign")
NODES: Mapping[str, str] = {
    **{name: f"F.{name}({{x}})" for name in ("relu", "softplus", "selu", "silu", "softsign")},
    **{name: f"torch.{name}({{x}})" for name in _OF_TORCH},
    "leaky_relu": "F.leaky_relu({x}, {slope})",
    "elu": "F.elu({x}, {alpha})",
    "celu": "F.celu({x}, {alpha})",
    "gelu": "F.gelu({x}{approximate:?approximate='none'})",
    "mish": "{x} * torch.tanh(F.softplus({x}))",
    "hard_swish": "F.hardswish({x})",
    "hard_sigmoid": "torch.clamp({slope} * {x} + {offset}, 0, 1)",
    "hardtanh": "torch.clamp({x}, {low}, {high})",
    "hard_shrink": "F.hardshrink({x}, {threshold})",
    "groupsort": "functional.group_sort({x}, {size}, axis={axis})",
    "fullsort": "functional.full_sort({x}, axis={axis})",
    "fixed_householder": "functional.householder({x}, {angle}, axis={axis})",
    **{name: f"functional.{name}({{x}}, {{window}})" for name in ("max_pool", "l2_pool", "scaled_avg_pool")},
    "avg_pool": "functional.avg_pool({x}, {window}{counted})",
    "lp_pool": "functional.lp_pool({x}, {p}, {window})",
    "adaptive_avg_pool": "F.adaptive_avg_pool{rank}d({x}, {size})",
    **{f"reduce_{name}": f"{{x}}.{method}(dim={{axes:+}}{_KEEP})" for name, method in _REDUCED.items()},
    "reduce_l2": "functional.l2_norm({x}, {axes}{keep:?keep=False})",
    "logsumexp": f"{{x}}.logsumexp(dim={{axes:+}}{_KEEP})",
    "global_avg_pool": f"{{x}}.mean(dim={{spatial:+}}{_KEEP})",
    "global_max_pool": f"{{x}}.amax(dim={{spatial:+}}{_KEEP})",
    "global_l2_pool": "functional.l2_norm({x}, {spatial}{keep:?keep=False})",
    "identity": "{x}",
    "flatten": "{flat}",
    "reshape": "{x}.reshape({x}.shape[0], {shape:*})",
    "transpose": "{x}.permute(0, {axes:+*})",
    **{name: f"functional.{name}({{x}}, {{size}})" for name in ("space_to_depth", "depth_to_space", "patches")},
    "slice": "{x}.narrow({axis:+}, {start}, {length})",
    "clip_norm": "functional.clip_norm({x}, {radius:b})",
    "clip_gradient": "self.clip_gradient({x}, {bound:b})",
    "dropout": "F.dropout({x}, {probability:p}, self.training)",
    "grouped_dropout": "functional.grouped_dropout({x}, {probability:p}, {axes}, self.training)",
    "pad": "functional.pad({x}, {padding}{mode:?mode='zeros'})",
    "upsample": "functional.upsample({x}, {factor}, {mode}{align_corners:?align_corners=False})",
    "gather": "functional.gather({x}, {indices}, axis={axis})",
    "expand": "functional.expand({x}, {shape})",
    "colour_space": "functional.colour_space({x}, {space})",
    "hsv": "functional.hsv({x})",
    "pointwise": "functional.pointwise({function}, {operands}{number:?number=0.0})",
    "noise": "functional.noise({x}, self.training)",
    "zeros": "functional.zeros({x}, {size})",
    "own_network": "functional.own_network(self.own_network, self.training, {size}, {operands}){tokens:-}",
    "scattering2d": "functional.scattering2d({x}, {scales}, angles={angles}, order={order})",
    "add": "{sum}",
    "multiply": "{product}",
    "matmul": "{x} @ {y}",
    "concat": "torch.cat([{operands}], dim={axis:+})",
    "maximum": "{maximum}",
    "minimum": "{minimum}",
    "where": "functional.where({x}, {y}, mask={bits})",
    "dot_product_attention": (
        "functional.dot_product_attention({operands}{scale:?scale=None}{causal:?causal=False}{dropping})"
    ),
    "center": "functional.center({x}, {axes})",
    "layer_norm": f"functional.layer_norm({{x}}, {{axes}}{_FLOOR})",
    "rms_norm": f"functional.rms_norm({{x}}, {{axes}}{_FLOOR})",
    "group_norm": f"functional.group_norm({{x}}, {{groups}}{_FLOOR})",
    "instance_norm": f"functional.instance_norm({{x}}{_FLOOR})",
    "lrn": "functional.local_response_norm({x}, {size}, alpha={alpha}, beta={beta}, k={k:a})",
    "softmax": "torch.softmax({tempered}, dim={axis:+})",
    "log_softmax": "torch.log_softmax({x}, dim={axis:+})",
}
# Of nodes with parameters: what constructs the layer, whose call with the operands computes the node.
LAYERS: Mapping[str, str] = {
    "dense": "layers.Dense({width}, {features}{affine})",
    "dense_transpose": "layers.DenseTranspose({width}, {features}{affine})",
    "conv": f"layers.Conv{{rank}}d({_KERNEL}{{padding_mode:?padding_mode='zeros'}}{{affine}})",
    "conv_transpose": f"layers.ConvTranspose{{rank}}d({_KERNEL}{{output_padding:?output_padding=0}}{{affine}})",
    "bias": "layers.Bias({size}, bound={ball})",
    "prelu": "layers.PReLU({own}, bound={box}){axis:-}{shared:-}",
    "scale": "layers.Scale({own}, bound={box}){axis:-}{shared:-}",
    "householder": "layers.Householder({own}, axis={axis})",
    "class_token": "layers.ClassToken({own}, bound={ball}{axis:?axis=0}{last:?last=False}){count:-}",
    "embedding": "layers.Embedding({entries}, {width}, bound={rows})",
    "attention": (
        "layers.Attention({width}, {heads}{context}{causal:?causal=False}{dropout:p?dropout=0.0}, "
        "constraint={constraints})"
    ),
}
# Of nodes that use the matrix of another node's layer: what constructs the layer, called with that matrix as well.
TIED: Mapping[str, str] = {
    "dense": "layers.TiedDense(){features:-}",
    "dense_transpose": "layers.TiedDense(transposed=True){features:-}",
}
# Of nodes without parameters: what constructs the layer that holds their constants.
_OF_SCATTERING = (
    "({example}, {scales}, {angles}, source={source}, floor={floor:a}, power={power}, channels={channels}, "
    "images={images})"
)
HOLDERS: Mapping[str, str] = {
    "whitened_scattering2d": f"layers.WhitenedScattering2d{_OF_SCATTERING}",
    "mirrored_scattering2d": f"layers.MirroredScattering2d{_OF_SCATTERING}",
    "whitened_patches": (
        "layers.WhitenedPatches({example}, {size}, {stride}, floor={floor:a}, power={power}, images={images})"
    ),
}
WORDS: Mapping[str, Callable[[Use], Any]] = {
    "x": lambda u: u.inputs[0],
    "y": lambda u: u.inputs[1],
    "operands": lambda u: ", ".join(u.inputs),
    "sum": lambda u: " + ".join(map(_weighted, u.take("weights"), u.aligned())),
    "product": lambda u: " * ".join(u.aligned()),
    "maximum": lambda u: reduce("torch.maximum({}, {})".format, u.inputs),
    "minimum": lambda u: reduce("torch.minimum({}, {})".format, u.inputs),
    "bits": lambda u: repr(f"{int(''.join('01'[bit] for bit in u.take('mask')), 2):x}"),
    "tempered": lambda u: _weighted(u.take("temperature"), u.inputs[0], "b"),
    "dropping": lambda u: _dropping(rounded(u.take("dropout"), "p")),
    "flat": lambda u: f"{u.inputs[0]}.flatten(1)" if u.shapes[0] else f"{u.inputs[0]}[:, None]",
    "spatial": lambda u: Value(range(1, len(u.shapes[0]))),
    "rank": lambda u: len(u.shapes[0]) - 1,
    "depth": lambda u: u.shapes[0][0],
    "width": lambda u: u.shapes[0][-1],
    "example": lambda u: Value(u.shapes[0]),
    "image": lambda u: Value(u.shapes[0][1:]),
    "length": lambda u: u.take("stop") - u.node["attributes"]["start"],
    "context": lambda u: f"{Value(u.shapes[-1][1]):?context_features={u.shapes[0][1]}}",
    "window": lambda u: u.window(),
    "counted": lambda u: u.counted(),
    "reads": lambda u: u.counts["reads"],
    "taps": lambda u: u.counts["taps"],
    "affine": lambda u: u.affine(),
    "constraints": lambda u: u.constraints(),
    "own": lambda u: Value(next(iter(u.parameters.values()))["shape"]),
    "ball": lambda u: u.bound(*u.parameters, "ball"),
    "box": lambda u: u.bound(*u.parameters, "box"),
    "rows": lambda u: u.bound(*u.parameters, "rows"),
}


def rounded(value: str, side: str = "") -> str:
    """Write an exact number as a double: the nearest, or as the side says, see above."""
    exact, double = Fraction(value), float(Fraction(value))
    side = "b" if side == "p" and 1000 * exact > 999 else side
    if (side == "b" and Fraction(double) > exact) or (side == "a" and Fraction(double) < exact):
        double = math.nextafter(double, -math.inf if side == "b" else math.inf)
    return repr(double)


def written(value: Any, side: str = "") -> str:
    """Write a value of a certificate as Python: numbers, flags, choices, None, and lists of these as tuples."""
    if isinstance(value, list | tuple | range):
        return f"({''.join(f'{written(item, side)}, ' for item in value)})"
    return rounded(value, side) if isinstance(value, str) and _NUMBER.fullmatch(value) else repr(value)


def clip(group: Mapping[str, Any]) -> str:
    """Write a group of parameters that the backward pass clips."""
    names = f"({''.join(f'{name!r}, ' for name in group['parameters'])})"
    regulariser = "" if group["regulariser"] is None else f", {rounded(group['regulariser'])}"
    return f"ClipGroup({group['name']!r}, {names}, {rounded(group['length'], 'b')}{regulariser})"


def _leaves(value: Any, side: str) -> set[str]:
    nested = isinstance(value, list | tuple)
    return {leaf for item in value for leaf in _leaves(item, side)} if nested else {written(value, side)}


def _weighted(weight: str, text: str, side: str = "") -> str:
    return text if Fraction(weight) == 1 else f"{rounded(weight, side)} * {text}"


def _dropping(dropout: str) -> str:
    return "" if dropout == "0.0" else f", dropout={dropout}, training=self.training"


class Value:
    """A value, to be written as a format says."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __format__(self, how: str) -> str:
        rounding, optional, pair = how.partition("?")
        side, value = rounding.strip("+*-"), self._value
        if optional:
            key, _, default = pair.partition("=")
            return "" if _leaves(value, side) <= {default} else f", {key}={written(value, side)}"
        if "+" in rounding:
            value = value + 1 if isinstance(value, int) else [axis + 1 for axis in value]
        text = "" if "-" in rounding else written(value, side)
        return text[1:-1] if "*" in rounding else text


class Use:
    """One node of a graph, the shapes of its operands, and the conditions that the verifier counted."""

    def __init__(
        self, graph: Mapping[str, Any], node: Mapping[str, Any], shapes: Sequence[Any], counts: Mapping[str, Any]
    ) -> None:
        self.graph: Mapping[str, Any] = graph
        self.node: Mapping[str, Any] = node
        self.inputs: Sequence[str] = node["inputs"]
        self.shapes: Sequence[Any] = shapes
        self.counts: Mapping[str, Any] = counts
        self.parameters: Mapping[str, Any] = {
            role: graph["parameters"][name] for role, name in node["parameters"].items()
        }
        self._left, self._sides = dict(node["attributes"]), [[0, 0]]

    def sized_as(self, first: Use) -> Use:
        """Return the node as if it read what another node reads."""
        return Use(self.graph, self.node, first.shapes, first.counts)

    def spelt(self, table: Mapping[str, str]) -> str:
        """Return the Python of the node; raises ValueError where there is none."""
        text = table.get(self.node["op"], "").format_map(self)
        if self._left or not text:
            raise ValueError(
                f"no known expression computes `{self.node['op']}` with {sorted(self.node['attributes'])} is known"
            )
        return text

    def __getitem__(self, name: str) -> Any:
        """Return what stands for a name in a format: an attribute, or else a word."""
        return Value(self.take(name)) if name in self._left else WORDS[name](self)

    def take(self, name: str) -> Any:
        """Return an attribute, and cross it off."""
        return self._left.pop(name)

    def aligned(self) -> list[str]:
        """Return the operands, each with the axes that broadcasting lacks behind its batch axis."""
        rank, pairs = len(self.node["shape"]), zip(self.inputs, self.shapes, strict=True)
        return [f"{x}[:, {', '.join(['None'] * (rank - len(s)))}]" if len(s) < rank else x for x, s in pairs]

    def window(self) -> str:
        """Write a pool; what ceil_mode adds is padding behind."""
        kernel, stride, padding, dilation = (self._left[n] for n in ("kernel", "stride", "padding", "dilation"))
        axes = zip(self.shapes[0][1:], self.node["shape"][1:], kernel, stride, dilation, padding, strict=True)
        self._sides = [_sides(*axis) for axis in axes] if self.take("ceil_mode") else padding
        text = written(kernel) + ("" if stride == kernel else f", stride={written(stride)}")
        self._left = {n: v for n, v in self._left.items() if n not in ("kernel", "stride", "padding", "dilation")}
        return f"{text}{Value(self._sides):?padding=0}{Value(dilation):?dilation=1}"

    def counted(self) -> str:
        """Write which padding the divisors of an average count, if that is not all of it."""
        padding = self.node["attributes"]["padding"]
        most = padding if self.take("count_include_pad") else [[0, 0]] * len(padding)
        whole = all(a <= c and b <= d for (a, b), (c, d) in zip(self._sides, most, strict=True))
        return "" if whole else f", counted={written(most)}"

    def bound(self, role: str, *kinds: str) -> str:
        """Write the radius of a parameter, whose constraint must be of these kinds; raises ValueError."""
        if self.parameters[role]["constraint"] not in (*kinds, "free"):
            raise ValueError(f"the {role} is constrained by {self.parameters[role]['constraint']!r}")
        if self.parameters[role]["bound"] is None:
            return "Free()"
        return rounded(self.parameters[role]["bound"], "b")

    def constraint(self, role: str) -> str:
        """Write the constraint of a weight; raises ValueError."""
        bound, kind = self.bound(role, "spectral", "orthogonal", "frobenius"), self.parameters[role]["constraint"]
        if kind == "orthogonal" and bound != "1.0":
            raise ValueError(f"an orthogonal constraint has bound 1, not {bound}")
        if kind == "free":
            return bound
        return "Orthogonal()" if kind == "orthogonal" else f"{kind.capitalize()}({bound})"

    def affine(self) -> str:
        """Write the bias, if there is one, and the constraint of the weight."""
        bias = f", bias={self.bound('bias', 'ball')}" if "bias" in self.parameters else ""
        return f"{bias}, constraint={self.constraint('weight')}"

    def constraints(self) -> str:
        """Write the constraint of all four matrices, or of each where they differ."""
        each = {role: self.constraint(role) for role in ("query", "key", "value", "output")}
        pairs = ", ".join(f"{role!r}: {text}" for role, text in each.items())
        return each["query"] if len(set(each.values())) == 1 else f"{{{pairs}}}"


def _sides(size: int, outputs: int, kernel: int, stride: int, dilation: int, padding: Sequence[int]) -> list[int]:
    """Return the padding that ends with the last of so many windows."""
    end = (outputs - 1) * stride + dilation * (kernel - 1) + 1
    return [padding[0], max(0, end - size - padding[0])]
