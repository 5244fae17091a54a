"""Whatever is no certificate is refused with a reason, and without an exception."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from lipcompile_verify import verify
from lipcompile_verify.__main__ import main

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
