"""Whatever is no certificate is refused with a reason, and without an exception."""

from __future__ import annotations

import json
import tracemalloc
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import pytest
from lipcompile_verify import verify
from lipcompile_verify.__main__ import main
from lipcompile_verify.derive import Derivation
from lipcompile_verify.document import MalformedError
from lipcompile_verify.files import read_certificate
from lipcompile_verify.intervals import Real

from .models import document, drawn, one_op
from .mutations import at, inside, put, rehashed

VALID = drawn(3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b'{"schema": "lipcompile.certificate/1"}',
        b'{"schema": 1, "schema": 2}',
        b'{"schema": NaN}',
        b'{"schema": 1.5}',
        b'{"schema": Infinity}',
        b"[" * 100_000,
        b'{"graph": ' * 100_000,
        b'{"schema": ' + b"9" * 5000 + b"}",
        '{"schema": "é"}'.encode(),
    ],
    ids=range(14),
)
def test_files_that_are_no_certificate(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "certificate.json"
    path.write_bytes(data)
    assert main([str(path)]) == 1
    assert "REFUSED" in capsys.readouterr().out


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.json")]) == 1
    assert "REFUSED" in capsys.readouterr().out


def test_a_valid_file_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(VALID))
    assert main([str(path)]) == 0
    assert "verified" in capsys.readouterr().out


NUMBERS = (0, -1, 2**70, 10**400, 1.5, float("nan"))
STRANGE: tuple[Any, ...] = (None, True, *NUMBERS, "", "x", "1/0", "-3", "0x1p+99999", [], {}, [[]], {"a": 1})
FREE = {("source", "name"), ("source", "format"), ("source", "sha256"), ("versions", "lipcompile")}


def test_no_strange_value_is_taken_or_raises() -> None:
    rng = Random(0)
    everywhere = [place for place in inside(VALID) if place and place not in FREE and place[-1] != "proof"]
    for _ in range(400):
        place, value = rng.choice(everywhere), rng.choice(STRANGE)
        changed = put(VALID, place, value)
        if changed != VALID:
            assert verify(changed).problems, (place, value)


def test_a_missing_field_and_one_more_are_refused() -> None:
    for place in inside(VALID):
        part = at(VALID, place)
        if isinstance(part, dict):
            assert verify(put(VALID, place, part | {"more": 0})).problems, place
            for key in part:
                less = {name: value for name, value in part.items() if name != key}
                assert verify(put(VALID, place, less)).problems, (place, key)


@pytest.mark.parametrize("value", [{"schema": object()}, {1: 2}, {"graph": {"a": {1, 2}}}, {}])
def test_what_is_no_json_is_refused(value: Any) -> None:
    assert verify(value).problems


def test_a_document_that_holds_itself_is_refused() -> None:
    own: dict[str, Any] = {}
    own["graph"] = own
    assert verify(own).problems


def test_a_document_that_nests_deeply_is_refused() -> None:
    deep: Any = {}
    for _ in range(50_000):
        deep = {"graph": deep}
    assert verify(deep).problems
    while deep:
        deep = deep.pop("graph")


def test_sizes_are_bounded() -> None:
    graph = one_op("avg_pool", 0)
    assert graph is not None
    valid = document(graph)
    index = [step["rule"] for step in valid["steps"]["forward"]].index("avg_pool")
    axes = len(valid["graph"]["nodes"][index]["attributes"]["kernel"])
    for size in (2**20, 2**39, 2**200):
        changed = put(valid, ("graph", "nodes", index, "attributes", "kernel"), [size] * axes)
        assert verify(rehashed(changed)).problems
        padding = put(valid, ("graph", "nodes", index, "attributes", "padding"), [[size, size]] * axes)
        assert verify(rehashed(padding)).problems


# Models that would take long


def graph(shape: list[int], nodes: list[Any], parameters: dict[str, Any], norm: str = "1") -> dict[str, Any]:
    """A graph that ends with its last node."""
    names = ("x", *(f"n{i}" for i in range(len(nodes))))
    entropy = {"temperature": "1", "normalise": True, "label_smoothing": "0", "class_weights": []}
    return {
        "input": {"name": "x", "shape": shape, "norm": norm, "trusted": False, "tokens": False},
        "nodes": [
            {"name": name, "op": op, "attributes": attributes, "shape": made, "parameters": own, "inputs": read}
            for name, (op, attributes, made, own, read) in zip(names[1:], nodes, strict=True)
        ],
        "parameters": {
            name: {"shape": of, "constraint": "spectral", "bound": "1", "trainable": True}
            for name, of in parameters.items()
        },
        "output": names[-1],
        "loss": {"name": "cross_entropy", "attributes": entropy},
    }


def head(read: str) -> tuple[Any, ...]:
    return ("dense", {"features": 2}, [2], {"weight": "w"}, [read])


def chain(op: str, attributes: list[dict[str, Any]], shapes: list[list[int]], norm: str = "1") -> dict[str, Any]:
    """An op again and again, and a layer."""
    nodes: list[Any] = [
        (op, one, shape, {}, [f"n{i - 1}" if i else "x"] * (2 if op == "multiply" else 1))
        for i, (one, shape) in enumerate(zip(attributes, shapes[1:], strict=True))
    ]
    flat: Any = ("flatten", {}, [prod(shapes[-1])], {}, [f"n{len(nodes) - 1}"])
    ends = [flat, head(f"n{len(nodes)}")]
    return graph(shapes[0], [*nodes, *ends], {"w": [2, prod(shapes[-1])]}, norm)


def pads(count: int, size: int) -> dict[str, Any]:
    one = {"padding": [[0, 1]], "mode": "replicate"}
    return chain("pad", [one] * count, [[1, size + i] for i in range(count + 1)])


def test_sizes_are_bounded_in_all() -> None:
    """Each of these axes may be gone through, but not all of them."""
    assert Derivation(pads(1, 2**19), {}).gradient
    with pytest.raises(MalformedError, match="in reasonable time"):
        Derivation(pads(40, 2**19), {})


def test_softmaxes_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the work that is left, each of 1000 entries takes a thirtieth at the least."""
    monkeypatch.setattr("lipcompile_verify.document.MOST_WORK", 30 * 16_000)
    one = {"temperature": "1", "axis": 0}
    assert Derivation(chain("softmax", [one], [[1000]] * 2), {}).gradient
    with pytest.raises(MalformedError, match="in reasonable time"):
        Derivation(chain("softmax", [one] * 31, [[1000]] * 32), {})


@pytest.mark.parametrize("norm", ["1" + "0" * 900, "1/1" + "0" * 900])
def test_squares_of_squares_have_ends_of_bounded_length(norm: str) -> None:
    found = Derivation(chain("multiply", [{}] * 40, [[2]] * 41, norm), {})
    k = found.gradient["w"]
    assert k.upper() == (float("inf") if "/" not in norm else 5e-324)
    assert not Real(k.lo, k.hi).falls_below(0.0)


def test_many_slices_take_no_longer_than_they_are_many() -> None:
    """All pairs of 5,000 slices would be 12 million, more than the work of a derivation."""
    count = 5_000
    nodes: list[Any] = [("slice", {"axis": 0, "start": i, "stop": i + 1}, [1], {}, ["x"]) for i in range(count)]
    joined: Any = ("concat", {"axis": 0}, [count], {}, [f"n{i}" for i in range(count)])
    found = Derivation(graph([count], [*nodes, joined, head(f"n{count}")], {"w": [2, count]}), {})
    assert found.gradient["w"].upper() <= 2 * count**0.5


@pytest.mark.parametrize(("name", "data"), [("a.json", b'{"a":[' + b"[]," * 2**22), ("a.py", b"a=1\n" * 2**15)])
def test_many_values_are_refused_before_they_are_in_memory(
    name: str, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lipcompile_verify.emitted.MOST_TOKENS", 2**16)  # a sixteenth
    path = tmp_path / name
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError, match="it has more than"):
            read_certificate(path)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(data)
    finally:
        tracemalloc.stop()
