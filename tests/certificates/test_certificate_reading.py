"""Certificates read back: the same graph, byte for byte, or a reason why not."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from lipcompile.analysis.sensitivity import analyse
from lipcompile.certificates import certificate, encode, graph_document, hash_of
from lipcompile.certificates.read import document_of, graph_of
from lipcompile.diagnostics import InputError
from tests.certified import certificate_of, losses, uses
from tests.emitters.test_emit import NETWORKS, derive

Document = dict[str, Any]
CHANGES = 400
# What is put in the place of anything.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 10**6, 10**12, 2.5, "", "x", "1", "0", "-1", "1/3", "2/4", "1/0", "1e9"),
    *([], [1], [[1, 2]], {}, "relu", "dense", "add", "conv"),
)


def network(name: str, folder: Path) -> Document:
    return certificate(derive(folder, f"{NETWORKS[name]}\n loss cross_entropy"))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_graph_comes_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    document = network(name, tmp_path)
    graph = graph_of(document_of(encode(document).decode()))
    assert encode(graph_document(graph)) == encode(document["graph"])
    total = analyse(graph).total.value
    assert total is not None
    assert total.hex() == document["totals"]["gradient"]


def test_random_depth_of_whole_examples_comes_back(tmp_path: Path) -> None:
    """Its number of axes is 0."""
    body = "input x: tensor[4], norm <= 1\n grouped_dropout(0.1, axes=0)\n dense(2)\n loss cross_entropy"
    document = certificate(derive(tmp_path, body))
    assert encode(graph_document(graph_of(document))) == encode(document["graph"])


@pytest.mark.slow
def test_every_op_and_every_loss_comes_back() -> None:
    for graph in (*uses(each=4), *losses(each=2)):
        document = certificate_of(graph)
        assert encode(graph_document(graph_of(document))) == encode(document["graph"])


# What is no certificate


def small(folder: Path) -> Document:
    body = "input x: tensor[2, 6], norm <= 3/2\n dense(4, bias=0.5) groupsort dense(3) flatten dense(2)"
    return certificate(derive(folder, f"{body}\n loss cross_entropy(temperature=2)"))


def refused(document: Document, *, resealed: bool = True) -> str:
    """Why a certificate is not read, after its hash was made good."""
    if resealed:
        document["graph_sha256"] = hash_of(document["graph"])
    with pytest.raises(InputError) as caught:
        graph_of(document)
    (found,) = caught.value.diagnostics
    assert found.code == "LIP520", found
    return found.message


def node(document: Document, name: str) -> Any:
    return next(entry for entry in document["graph"]["nodes"] if entry["name"] == name)


def unused(document: Document) -> None:
    again = copy.deepcopy(node(document, "groupsort"))
    document["graph"]["nodes"].append({**again, "name": "another"})


CHANGED: dict[str, tuple[Callable[[Document], object], str]] = {
    "a key too many": (lambda d: node(d, "dense").update(x=1), "the unknown key `x`"),
    "a key too few": (lambda d: node(d, "dense")["attributes"].pop("features"), "has no `features`"),
    "a part too many": (lambda d: d.update(more={}), "`more`"),
    "a part too few": (lambda d: d.pop("totals"), "has no `totals`"),
    "a truth value for a number": (
        lambda d: node(d, "dense")["attributes"].update(features=True),
        "not an integer",
    ),
    "a float for a number": (lambda d: node(d, "dense")["attributes"].update(features=4.0), "not an integer"),
    "a number for an exact one": (lambda d: d["graph"]["input"].update(norm=1.5), "is not a text"),
    "not in lowest terms": (lambda d: d["graph"]["input"].update(norm="6/4"), "is not in canonical form"),
    "a decimal": (lambda d: d["graph"]["input"].update(norm="1.5"), "is not in canonical form"),
    "not a JSON number": (lambda d: d["graph"]["input"].update(norm="1/0"), "not an exact number"),
    "tokens with a norm": (lambda d: d["graph"]["input"].update(tokens=True), "tokens, which have no norm"),
    "an axis from the end": (lambda d: node(d, "groupsort")["attributes"].update(axis=-1), "negative"),
    "an open axis": (lambda d: node(d, "groupsort")["attributes"].update(axis=None), "not an integer"),
    "a size of zero": (lambda d: node(d, "groupsort")["attributes"].update(size=0), "not positive"),
    "an unknown op": (lambda d: node(d, "groupsort").update(op="softsort"), "the unknown op"),
    "an unknown loss": (lambda d: d["graph"]["loss"].update(name="mse"), "unknown loss `mse`"),
    "an unknown constraint": (
        lambda d: d["graph"]["parameters"]["dense.weight"].update(constraint="small"),
        "unknown constraint",
    ),
    "an orthogonal weight of norm 2": (
        lambda d: d["graph"]["parameters"]["dense.weight"].update(constraint="orthogonal", bound="2"),
        "bound 1",
    ),
    "another shape": (lambda d: node(d, "dense").update(shape=[2, 5]), "is not in canonical form"),
    "another shape of a weight": (
        lambda d: d["graph"]["parameters"]["dense.weight"].update(shape=[4, 7]),
        "is not in canonical form",
    ),
    "an unused node": (unused, "unused parts"),
    "an unused parameter": (
        lambda d: d["graph"]["parameters"].update(more=d["graph"]["parameters"]["dense.weight"]),
        "unused parts",
    ),
    "a role too few": (lambda d: node(d, "dense")["parameters"].pop("weight"), "does not have the parameters of"),
    "a role too many": (
        lambda d: node(d, "groupsort")["parameters"].update(weight="dense.weight"),
        "parameters of",
    ),
    "a parameter of nobody": (lambda d: node(d, "dense")["parameters"].update(weight="w"), "not declared"),
    "an operand of nobody": (lambda d: node(d, "groupsort").update(inputs=["z"]), "not computed before it"),
    "an operand from behind": (lambda d: node(d, "dense").update(inputs=["groupsort"]), "not computed before it"),
    "an operand too many": (lambda d: node(d, "groupsort").update(inputs=["dense", "x"]), "2 operands"),
    "a name that is none": (lambda d: node(d, "dense").update(name="den se"), "not a valid name of a node"),
    "an output of nobody": (lambda d: d["graph"].update(output="z"), "its output"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_what_the_format_does_not_have_is_refused(what: str, tmp_path: Path) -> None:
    document = small(tmp_path)
    change, said = CHANGED[what]
    change(document)
    assert said in refused(document)


def test_a_graph_of_another_hash_is_refused(tmp_path: Path) -> None:
    document = small(tmp_path)
    document["graph"]["input"]["norm"] = "1"
    assert "not the hash" in refused(document, resealed=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[]", "schema"),
        ('{"schema": "lipcompile.certificate/2"}', "schema"),
        ('{"schema": "lipcompile.certificate/1", "schema": "lipcompile.certificate/1"}', "occurs twice"),
        ('{"schema": "lipcompile.certificate/1", "totals": NaN}', "not a JSON number"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_certificate_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        document_of(text)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def changed(graph: Any, rng: random.Random) -> None:
    """Change one thing anywhere."""
    *path, last = rng.choice(list(places(graph))[1:])
    parent = graph
    for key in path:
        parent = parent[key]
    if rng.random() < 0.2:
        del parent[last]
    else:
        parent[last] = rng.choice(VALUES)


@pytest.mark.parametrize("name", ["images", "merges"])
def test_a_change_is_refused_or_read_as_what_it_says(name: str, tmp_path: Path) -> None:
    rng, original = random.Random(7), network(name, tmp_path)
    read = 0
    for _ in range(CHANGES):
        document = copy.deepcopy(original)
        changed(document["graph"], rng)
        document["graph_sha256"] = hash_of(document["graph"])
        try:
            graph = graph_of(document)
        except InputError:
            continue
        read += 1
        assert encode(graph_document(graph)) == encode(document["graph"])
    assert 0 < read < CHANGES


def test_numbers_are_exact(tmp_path: Path) -> None:
    graph = graph_of(json.loads(encode(small(tmp_path))))
    assert graph.input.norm == Fraction(3, 2)
    assert graph.parameters["dense.bias"].constraint.bound == Fraction(1, 2)
    assert graph.loss is not None
    assert graph.loss.attributes.temperature == 2
