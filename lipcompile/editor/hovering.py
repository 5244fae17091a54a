"""What an editor shows of a word: a layer's shape, norm, κ and bound; the loss; the signature of a name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lipcompile.core.derivation import Analysis, Bound, Derivation, LayerBounds
from lipcompile.core.graph import Node
from lipcompile.editor.document import Document, covers, word_at
from lipcompile.editor.words import known_layers, losses
from lipcompile.numbers import text as scalar_text
from lipcompile.numbers.known import Definition
from lipcompile.numbers.rounding import finite, upward
from lipcompile.reports.formulas import dimensions, legible, up
from lipcompile.reports.html.layout import Part, parts_of
from lipcompile.reports.rows import layer_of_all, together


def hover(document: Document, line: int, column: int) -> str | None:
    """Return Markdown for the word at a place (both count from 1), None where there is nothing to say."""
    word = word_at(document.lines, line, column)
    if not word:
        return None
    known = [text for derivation in document.derivations for text in _derived(derivation, word, line, column)]
    text = "\n\n".join([*_signature(document, word), *known])
    return text or None


def _signature(document: Document, word: str) -> Iterator[str]:
    """Yield how a layer, a loss or a block is called, and what it does."""
    if word in document.blocks:
        given = ", ".join(name.text for name, _ in document.blocks[word].parameters)
        yield f"```lip\nblock {word}({given})\n```"
        return
    call = known_layers().get(word) or losses().get(word)
    if call is not None:
        yield f"```lip\n{call}\n```"
        yield from [call.text] if call.text else []


def _derived(derivation: Derivation, word: str, line: int, column: int) -> Iterator[str]:
    analysis = derivation.analysis
    if analysis is None:
        return
    graph = analysis.graph
    use = [part for part in parts_of(graph)[0] if _is_of(part.node, word, line, column)]
    if use:
        yield _of_layer(use, analysis)
    elif covers(graph.input.location, line, column):
        norm = "no norm is given" if graph.input.norm is None else f"norm ≤ {scalar_text(graph.input.norm)}"
        yield f"input {dimensions(graph.input.shape)}, {'tokens' if graph.input.tokens else norm}"
    elif graph.loss is not None and covers(graph.loss.location, line, column):
        yield f"Lipschitz constant in the logits: {_shown(analysis.loss_lipschitz)}"
    elif word == graph.name:
        yield f"gradient of one example, all parameters: {_shown(analysis.total)}"


def _is_of(node: Node, word: str, line: int, column: int) -> bool:
    """Whether a place is in the name of a layer, or in that of the value it makes."""
    named = node.location is not None and node.location.line == line and node.name == word
    return named or covers(node.location, line, column)


def _of_layer(use: Sequence[Part], analysis: Analysis) -> str:
    """Return the bounds of a layer, the largest of all its copies."""
    first = use[0].node
    copies = f", the largest of {len(use)} copies" if len(use) > 1 else ""
    shapes = " and ".join(dimensions(shape) for shape in first.site.inputs)
    lines = [f"**{first.name}**: {shapes} → {dimensions(first.shape)}{copies}", "", "| | formula | upper bound |"]
    lines += ["|---|---|--:|", *(rows := list(_rows(use, analysis)))]
    return "\n".join([*lines, *_names(rows, analysis)])


def _names(rows: Sequence[str], analysis: Analysis) -> Iterator[str]:
    """Yield what the names in formulas mean, and how large they are at most."""
    used = set(re.findall(r"[A-Za-z_]\w*", " ".join(re.findall("`[^`]*`", " ".join(rows)))))
    for definition in analysis.definitions:
        if definition.name in used:
            yield f"\n`{definition.name}` {_known(definition)}: {definition.meaning}"


def _known(definition: Definition) -> str:
    if definition.upper is not None:
        return f"≤ {upward(definition.upper)}"
    return "is open" if definition.expression is None else f"= `{legible(definition.expression)}`"


def _rows(use: Sequence[Part], analysis: Analysis) -> Iterator[str]:
    of = {found.name: found for found in analysis.layers}
    known = [of[part.key] for part in use if part.key in of]
    if known:
        yield from _of_node(layer_of_all(known))
    for index, role in enumerate(use[0].node.parameters):
        names = [part.parameters[index] for part in use]
        own = analysis.graph.parameters[names[0]]
        title = f"gradient bound of `{names[0]}` {dimensions(own.shape)}, {own.constraint}"
        bounds = [analysis.parameters[name] for name in names if name in analysis.parameters]
        if not bounds:
            yield f"| {title} | not trained | 0 |"
            continue
        clipped = analysis.graph.clip_of(names[0]) is not None
        formula = "clipped" if clipped else _formula(together(bounds))
        yield f"| {title} | {formula} | {up(together(bounds).value)} |"
        found = [interval for part in use if (interval := analysis.numbers.kappa.get(part.key, {}).get(role))]
        kappas = [kappa for interval in found if (kappa := finite(interval.upper)) is not None]
        if kappas:
            yield f"| κ of `{names[0]}` | | {up(max(kappas))} |"


def _of_node(found: LayerBounds) -> Iterator[str]:
    titles = {
        "output norm": found.output_norm,
        "cotangent": found.cotangent,
        "Lipschitz constant": found.lipschitz,
    }
    for title, bound in titles.items():
        yield f"| {title} | {_formula(bound)} | {up(bound.value)} |"


def _formula(bound: Bound) -> str:
    return "" if bound.expression.is_number else f"`{legible(bound.expression)}`"


def _shown(bound: Bound) -> str:
    return f"`{legible(bound.expression)}`" + ("" if bound.value is None else f" ≤ {upward(bound.value)}")
