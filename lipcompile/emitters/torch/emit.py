"""Derivation -> the text of a trainable PyTorch module. Needs no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lipcompile_torch.weights import encode_weights

from lipcompile.analysis.bounds import linear_in_loss
from lipcompile.analysis.features import Features, features
from lipcompile.analysis.open_numbers import complete
from lipcompile.analysis.requirements import proves
from lipcompile.certificates import certificate, listed
from lipcompile.core import backend
from lipcompile.core.derivation import Analysis, Derivation
from lipcompile.core.graph import ClipGroup, Graph, Input, Node
from lipcompile.core.record import Shape
from lipcompile.emitters.torch.expressions import (
    TIED,
    constructor,
    expression,
    has_layer,
    loss_expression,
    owner,
    tied,
    user_imports,
)
from lipcompile.emitters.torch.pieces import WIDTH, below, nearest, wrapped
from lipcompile.emitters.torch.programs import current_slope, following_bounds
from lipcompile.numbers.rounding import finite, upward
from lipcompile.version import __version__

# Names of the runtime that programs call.
_CALLED = ("ClipGroup", "Free", "Frobenius", "Orthogonal", "Spectral", "decode_weights")


def emit(
    derivation: Derivation,
    follow_weights: bool = False,
    noise_strategy: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
) -> str:
    """Return one Python file that defines `Model`, a `LipschitzModule` without constructor arguments.

    With `follow_weights` its bounds are evaluated at the certified norms of the current weights instead of the
    bounds of their constraints. `noise_strategy` is data for `factorisation.strategy_from`, which it carries;
    `training` is what its certificate says of the planned training.
    Raises InputError if the model is rejected, or leaves a number open.
    """
    analysis = complete(derivation, "a module")
    graph = analysis.graph
    found = None if follow_weights else features(graph)
    document, matrices = certificate(derivation, training), tied(graph)
    body = [
        *_attributes(analysis, found, document),
        *([] if noise_strategy is None else _literal("noise_strategy", noise_strategy)),
        "",
        *_constructor(graph, matrices),
        "",
        *_forward(graph, found, matrices),
        "",
        *_loss(graph),
        *(["", *following_bounds(graph)] if follow_weights else []),
        *([] if graph.input.tokens else ["", *current_slope(graph)]),
    ]
    name = class_name(graph.name)
    indented = (f"    {line}" if line else "" for line in body)
    program = [f"class {name}(LipschitzModule):", f'    """The network {graph.name}."""', "", *indented]
    footer = _footer(document, graph, name)
    imports = _imports("\n".join(program), user_imports(graph))
    return "\n".join([*_header(derivation, analysis), *imports, *program, *footer, ""])


class TorchBackend:
    """The `torch` backend of the compiler."""

    emit = staticmethod(emit)

    @property
    def audit(self) -> backend.Audit:
        """`lipcompile_torch.audit.search`."""
        import lipcompile_torch.audit.search as module

        return module

    @property
    def data(self) -> backend.Data:
        """`lipcompile_torch.train.data`."""
        import lipcompile_torch.train.data as module

        return module

    @property
    def deployment(self) -> backend.Deployment:
        """`lipcompile_torch.deploy.deployment`."""
        import lipcompile_torch.deploy.deployment as module

        return module

    @property
    def environment(self) -> backend.Environment:
        """`lipcompile_torch.environment`."""
        import lipcompile_torch.environment as module

        return module

    @property
    def privacy_audit(self) -> backend.PrivacyAudit:
        """`lipcompile_torch.audit.privacy_audit`."""
        import lipcompile_torch.audit.privacy_audit as module

        return module

    @property
    def robustness(self) -> backend.Robustness:
        """`lipcompile_torch.deploy.certification`."""
        import lipcompile_torch.deploy.certification as module

        return module

    @property
    def signal(self) -> backend.Signal:
        """`lipcompile_torch.audit.signal`."""
        import lipcompile_torch.audit.signal as module

        return module

    @property
    def training(self) -> backend.Training:
        """`lipcompile_torch.train.training`."""
        import lipcompile_torch.train.training as module

        return module


BACKEND: backend.Backend = TorchBackend()


def class_name(model: str) -> str:
    """Return the class of a model: CamelCase, and no name that the file uses otherwise."""
    words = re.findall(r"[A-Za-z0-9]+", model)
    name = "".join(word[0].upper() + word[1:] for word in words) or "Network"
    name = f"Model{name}" if name[0].isdigit() else name
    return f"{name}Network" if name in {"Tensor", "F", "Model", "LipschitzModule", "Mapping", *_CALLED} else name


def _header(derivation: Derivation, analysis: Analysis) -> list[str]:
    source = derivation.source
    origin = f"from {Path(source.path).name}, sha256 {source.sha256[:16]}"
    how = "" if analysis.graph.clips else ", without clipping the gradients of examples"
    return [
        f'"""{source.name}: trains with differential privacy{how}.',
        "",
        f"Emitted by lipcompile {__version__} {origin}.",
        "Emit again instead of editing: the bounds hold for this very network.",
        "",
        "Bounds of the gradient of one example, by parameter, while the constraints hold:",
        "",
        *_table(analysis),
        *(f"    {_shared(group)}" for group in analysis.graph.clips),
        '"""',
        "",
    ]


def _shared(group: ClipGroup) -> str:
    return f"clip `{group.name}`: {upward(float(group.length))} together, {len(group.parameters)} parameters"


def _table(analysis: Analysis) -> list[str]:
    rows = []
    for name, parameter in analysis.graph.parameters.items():
        bound = analysis.parameters.get(name)
        shown = "frozen" if bound is None or bound.value is None else upward(bound.value)
        rows.append((name, "x".join(map(str, parameter.shape)), str(parameter.constraint), shown))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return [
        "    " + "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]


def _imports(program: str, others: list[str]) -> list[str]:
    """Return the imports that the program needs, in the order that formatters keep."""
    used = {name for name in ("functional", "layers", "losses") if re.search(rf"\b{name}\.", program)}
    used |= {name for name in _CALLED if f"{name}(" in program}
    names = sorted({"LipschitzModule", *used}, key=lambda name: (name[0].islower(), name))
    lines = ["from __future__ import annotations", "", "import json", ""]
    lines += ["import torch"] if "torch." in program else []
    lines += ["from torch import Tensor"]
    lines += ["from torch.nn import functional as F"] if re.search(r"\bF\.", program) else []
    lines += ["", f"from lipcompile_torch import {', '.join(names)}"]
    if re.search(r"\bnum\.\w+", program):
        lines += ["from lipcompile_torch.runtime import numbers as num"]
    return [*lines, *others, "", ""]


def _attributes(analysis: Analysis, found: Features | None, document: Mapping[str, Any]) -> list[str]:
    source, groups = analysis.graph.input, analysis.graph.clips
    clips = (line for group in groups for line in _clip(group))  # parameters that the backward pass clips
    parts = (f"    {json.dumps(name)}: {shape}," for name, shape in source.parts)  # the inputs that callers give
    return [
        f"input_shape = {source.shape}",
        *_domain(source),
        *(["input_parts = {", *parts, "}"] if source.parts else []),
        *([] if found is None else [f"features_shape = {found.shape}", f"features_norm = {below(found.norm)}"]),
        f"lipschitz = {_number(analysis.lipschitz.value)}",
        f"loss_lipschitz = {_number(analysis.loss_lipschitz.value)}",
        *_dictionary("bounds", {name: bound.value for name, bound in analysis.parameters.items()}),
        *_unclipped_bounds(analysis.graph, document),
        *(["clips = [", *clips, "]"] if groups else []),
    ]


def _clip(group: ClipGroup) -> list[str]:
    names = [f'            "{name}",' for name in group.parameters]
    numbers = [below(group.length), *([] if group.regulariser is None else [nearest(group.regulariser)])]
    return [
        "    ClipGroup(",
        f'        "{group.name}",',
        "        (",
        *names,
        "        ),",
        *(f"        {number}," for number in numbers),
        "    ),",
    ]


def _unclipped_bounds(graph: Graph, document: Mapping[str, Any]) -> list[str]:
    """Write the bounds that are proportional to L: those of the module, if nothing inside clips gradients."""
    if linear_in_loss(graph) or not proves(graph):
        return ["unclipped_bounds = bounds"]
    found = {step["name"]: float.fromhex(step["unclipped"]) for step in document["steps"]["parameters"]}
    return _dictionary("unclipped_bounds", {name: finite(bound) for name, bound in found.items()})


def _dictionary(name: str, numbers: Mapping[str, float | None]) -> list[str]:
    return [f"{name} = {{", *(f'    "{key}": {_number(value)},' for key, value in numbers.items()), "}"]


def _literal(name: str, entries: Mapping[str, Any]) -> list[str]:
    """Write a dictionary, its long lists with an item to a line, as formatters do."""
    lines = [f"{name} = {{"]
    for key, value in entries.items():
        line = f"    {json.dumps(key)}: {json.dumps(value)},"
        if len(line) + 4 <= WIDTH or not isinstance(value, list):
            lines.append(line)
        else:
            items = [f"        {json.dumps(item)}," for item in value]
            lines += [f"    {json.dumps(key)}: [", *items, "    ],"]
    return [*lines, "}"]


def _domain(source: Input) -> list[str]:
    if source.tokens:
        return ["input_tokens = True", 'input_norm = float("inf")']
    norm = 'float("inf")' if source.norm is None else below(source.norm)
    return [f"input_norm = {norm}", f"input_trusted = {source.trusted}"]


def _number(value: float | None) -> str:
    """Write a certified number; an op that jumps, as tokens do, leaves the output without a finite constant."""
    return 'float("inf")' if value is None else repr(value)


def _constructor(graph: Graph, matrices: Mapping[str, str]) -> list[str]:
    lines = ["def __init__(self) -> None:", "    super().__init__()"]
    built: set[str] = set()
    for node in graph.nodes:
        if node.name in matrices:
            lines.append(f"    self.{node.name} = layers.{TIED[node.op.name]}")
        elif has_layer(node) and owner(node) not in built:
            built.add(owner(node))
            lines += wrapped(f"    self.{owner(node)} = {constructor(graph, node)}")
    frozen = [name for name, parameter in graph.parameters.items() if not parameter.trainable]
    lines += [f"    self.{name}.requires_grad_(False)" for name in frozen]
    return [*lines, *wrapped(f"    self.{_beginning(graph)}")]


def _beginning(graph: Graph) -> str:
    """Write what gives the weights their first values."""
    drawn = [name for name, parameter in graph.parameters.items() if parameter.initial is None]
    if len(drawn) == len(graph.parameters):
        return "project_()"
    others = f", drawn=[{', '.join(map(json.dumps, drawn))}]" if drawn else ""
    return f"load_initial_weights(decode_weights(_WEIGHTS){others})"


def _forward(graph: Graph, found: Features | None, matrices: Mapping[str, str]) -> list[str]:
    source = graph.input.name
    into, out = _batch(graph.input.shape), _batch(graph.shape(graph.output))
    entry = [f"    {source} = self.clip_input({source})"]
    if found is None:
        nodes, before, lines = graph.nodes, [], entry
        doc = f"Map {into} to {out}."
    else:
        kept = {node.name for node in found.nodes}
        nodes = tuple(node for node in graph.nodes if node.name not in kept)
        features = _batch(found.shape)
        before = [
            f"def frozen_features(self, {source}: Tensor) -> Tensor:",
            f'    """Map {into} to {features}; nothing on the way is trained."""',
            *entry,
            *_statements(found.nodes, matrices),
            f"    return {found.name}",
            "",
        ]
        doc = f"Map {into}, or features {features} under `on_features`, to {out}."
        given = f"self.clip_features({source}) if self.takes_features else self.frozen_features({source})"
        lines = (
            wrapped(f"    {found.name} = ({given})")
            if len(given) > WIDTH - 20
            else [f"    {found.name} = {given}"]
        )
    head = [f"def forward(self, {source}: Tensor) -> Tensor:", f'    """{doc}"""']
    return [*before, *head, *lines, *_statements(nodes, matrices), f"    return self.release({graph.output})"]


def _statements(nodes: Iterable[Node], matrices: Mapping[str, str]) -> list[str]:
    return [line for node in nodes for line in wrapped(f"    {node.name} = {expression(node, matrices)}")]


def _batch(shape: Shape) -> str:
    return f"[{', '.join(map(str, ('B', *shape)))}]"


def _loss(graph: Graph) -> list[str]:
    return [
        "def per_example_loss(self, output: Tensor, target: Tensor) -> Tensor:",
        '    """Return the loss of each example, [B]."""',
        *wrapped(f"    return {loss_expression(graph)}"),
    ]


def _footer(document: Mapping[str, Any], graph: Graph, name: str) -> list[str]:
    """The certificate and the imported weights, below what people read."""
    lines = ["", "", *_text_constant("_CERTIFICATE", listed(document).replace("\\", "\\\\"))]
    initial = {n: p.initial for n, p in graph.parameters.items() if p.initial is not None}
    if initial:
        text = encode_weights(initial)
        rows = (text[start : start + WIDTH] for start in range(0, len(text), WIDTH))
        lines += ["", *_text_constant("_WEIGHTS", "\n".join(rows))]
    return [*lines, "", f"{name}.certificate = json.loads(_CERTIFICATE)", f"Model = {name}"]


def _text_constant(name: str, text: str) -> list[str]:
    return [f'{name} = """\\', *text.split("\n"), '"""']
