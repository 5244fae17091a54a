"""Certificates of clipped gradients: C bounds the parameters of a group, these alone, and counts once."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from lipcompile_verify import verify

from lipcompile import pipeline
from lipcompile.certificates import certificate
from lipcompile.frontends.options import ModelOptions

from .mutations import rehashed

NET = "model m { input x: tensor[4]; dense(5, bias=true); frozen { dense(4) }; dense(3); loss cross_entropy }"
HALF = "0x1.0000000000000p-1"


@cache
def valid() -> Any:
    with TemporaryDirectory() as folder:
        path = Path(folder, "net.lip")
        path.write_text(NET)
        return json.loads(json.dumps(certificate(pipeline.check(str(path), ModelOptions(bounds="clip")))))


def test_all_of_a_group_have_its_length_and_it_counts_once() -> None:
    """C = 1 of three parameters: the whole is 1, not √3."""
    verdict = verify(valid())
    assert not verdict.problems
    assert set(verdict.gradient.values()) == {1.0}
    assert 1 <= verdict.totals["gradient"] < 1 + 1e-9


def _group(document: Any) -> Any:
    return document["graph"]["clips"][0]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "twice in a group": lambda d: _group(d)["parameters"].append(_group(d)["parameters"][0]),
    "in two groups": lambda d: d["graph"]["clips"].append(deepcopy(_group(d))),
    "no parameters": lambda d: d["graph"]["clips"].append({**_group(d), "name": "none", "parameters": []}),
    "a frozen parameter": lambda d: _group(d)["parameters"].append("dense_2.weight"),
    "no parameter of the model": lambda d: _group(d)["parameters"].append("other.weight"),
    "one left out, without a theorem": lambda d: _group(d)["parameters"].pop(),
    "no clip": lambda d: d["graph"].pop("clips"),
    "a longer clip than is claimed": lambda d: _group(d).update(length="1000000001/1000000000"),
    "a length of 0": lambda d: _group(d).update(length="0"),
    "a negative length": lambda d: _group(d).update(length="-1"),
    "a regulariser of 0": lambda d: _group(d).update(regulariser="0"),
    "a smaller claim": lambda d: d["steps"]["parameters"][0].update(gradient=HALF),
    "a smaller whole": lambda d: d["totals"].update(gradient=HALF),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_no_clip_of_the_claims_is_refused(change: str) -> None:
    changed = deepcopy(valid())
    CHANGES[change](changed)
    assert verify(rehashed(changed)).problems


def test_without_a_bound_of_the_targets_a_squared_error_proves_nothing(tmp_path: Path) -> None:
    """A certificate by theorem, of which the bound of the targets is taken away, claims too little."""
    path = tmp_path / "net.lip"
    path.write_text("model m { input x: tensor[4], norm <= 1\n dense(3); loss squared_error(target_norm=2) }")
    document = json.loads(json.dumps(certificate(pipeline.check(str(path)))))
    assert not verify(deepcopy(document)).problems
    document["graph"]["loss"]["attributes"]["target_norm"] = None
    assert verify(rehashed(document)).problems


def test_softsign_is_bounded_where_its_input_is_not(tmp_path: Path) -> None:
    """√n is what the compiler claims; X/(√n + X)·√n says nothing at X = ∞."""
    path = tmp_path / "net.lip"
    path.write_text("model m { input x: tensor[4]; dense(4, bias=true); softsign; dense(3); loss cross_entropy }")
    document = certificate(pipeline.check(str(path), ModelOptions(bounds="clip")))
    assert not verify(json.loads(json.dumps(document))).problems
