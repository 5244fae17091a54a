"""Every rule names a proof, every proof exists and has its four parts, and no proof is left without a rule."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from lipcompile.ops import LOSSES, OPS

NAMED = sorted({op.proof for op in OPS} | {loss.proof for loss in LOSSES})
PARTS = ("**Preconditions checked.**", "**Preconditions assumed.**", "**Statement.**", "**Proof.**")


def sections(file: str) -> dict[str, str]:
    """Text of each second-level section, by its anchor."""
    text = files("lipcompile.ops").joinpath(file).read_text(encoding="utf-8")
    pieces = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    titles, bodies = pieces[::2], pieces[1::2]
    return {title.lower().replace(" ", "-"): body for title, body in zip(titles, bodies, strict=True)}


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
