"""Every rule names a proof, every proof exists and has its four parts, none is left without a rule, and the two
change together.

`UPDATE_PROOFS=1 pytest tests/ops/test_proofs.py` agrees on the present state. Where rules changed without their
proof, or a proof without its rules, it wants the reason: UPDATE_PROOFS="a helper was renamed".
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from lipcompile.core.record import Inputs, Site, Theta
from lipcompile.ops.table import OP_BY_NAME
from tests.ops import proofs
from tests.ops.proofs import Entry, sections

NAMED = sorted(proofs.subjects())
PARTS = ("**Preconditions checked.**", "**Preconditions assumed.**", "**Statement.**", "**Proof.**")


@pytest.mark.parametrize("proof", NAMED)
def test_a_proof_has_its_parts_in_order(proof: str) -> None:
    file, _, anchor = proof.partition("#")
    body = sections(file)[anchor]
    places = [body.find(part) for part in PARTS]
    assert -1 not in places
    assert places == sorted(places)
    assert "∎" in body[places[-1] :]


def test_no_proof_is_left_without_a_rule() -> None:
    found = {
        f"{file}#{anchor}" for file in {name.partition("#")[0] for name in NAMED} for anchor in sections(file)
    }
    assert found == set(NAMED)


def test_rules_and_proofs_change_together() -> None:
    update = os.environ.get("UPDATE_PROOFS", "")
    if update:
        proofs.write("" if update == "1" else update)
    locked, current = proofs.locked(), proofs.current()
    changed = [p for p in current if replace(locked.get(p, Entry("", "")), note="") != current[p]]
    assert not changed, "proof or rules changed: check one against the other, then see this file's first lines"
    assert locked.keys() == current.keys()


def test_a_change_of_one_side_alone_is_seen() -> None:
    before = {"a": Entry("p", "r"), "b": Entry("p", "r"), "c": Entry("p", "r")}
    after = {"a": Entry("p", "s"), "b": Entry("q", "s"), "c": Entry("q", "r")}
    assert proofs.one_sided(before, after) == ["a", "c"]


def test_the_lock_sees_a_changed_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that calls another function, or one bound in a closure, has other tokens."""

    def looser(num: Any, site: Site[Any], x: Inputs[Any], theta: Theta[Any]) -> Any:  # noqa: ARG001
        return 2 * x[0].norm

    looser.__module__ = proofs.HOME
    before = proofs.current()["activation.md#sorting"]
    changed = replace(OP_BY_NAME["groupsort"], norm=looser)
    monkeypatch.setattr(proofs, "OPS", (changed,))
    assert proofs.current()["activation.md#sorting"].rules != before.rules
