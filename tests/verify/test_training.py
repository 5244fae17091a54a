"""What a certificate says of training: sampling, relation and accountant, and the noise of every parameter."""

from __future__ import annotations

from math import nextafter, sqrt
from typing import Any

import pytest
from lipcompile_verify import verify

from .models import drawn

VALID = drawn(3)
K = {step["name"]: float.fromhex(step["gradient"]) for step in VALID["steps"]["parameters"]}
PLAN: dict[str, Any] = {
    "neighbours": "add_remove",
    "sampling": "poisson",
    "batch": 256,
    "dataset": 60000,
    "steps": 4700,
    "noise": "global",
    "epsilon": "3",
    "delta": "1/100000",
    "accountant": "pld",
}


def problems(**changes: Any) -> list[str]:
    plan = {name: value for name, value in (PLAN | changes).items() if value is not ...}
    return [str(problem) for problem in verify(VALID | {"training": plan}).problems]


def noise(sigma: float, times: float = 1.0) -> dict[str, Any]:
    """The multiplier, and standard deviations for it: global noise, of equal size everywhere."""
    std = times * sigma * sqrt(sum(k * k for k in K.values())) * (1 + 1e-12)
    return {"noise_multiplier": sigma.hex(), "std": {name: std.hex() for name in K}}


def test_a_plan_that_a_theorem_covers() -> None:
    assert not problems()
    assert not problems(batch=None, dataset=None, steps=None, epsilon=None, delta=None)
    assert not problems(correlation={"bands": "16"})


@pytest.mark.parametrize(
    "changes",
    [
        {"neighbours": "replace_one", "accountant": "rdp"},
        {"sampling": "shuffle"},
        {"batch": 60001},
        {"delta": "1"},
        {"delta": "0"},
        {"epsilon": "-1"},
        {"neighbours": "none"},
        {"sampling": "whatever"},
        {"steps": 0},
        {"batch": ...},
        {"more": 1},
    ],
    ids=str,
)
def test_a_plan_that_none_covers(changes: dict[str, Any]) -> None:
    assert problems(**changes)


def test_noise_must_be_what_its_multiplier_says() -> None:
    assert not problems(**noise(1.25))
    assert problems(**noise(1.25, times=0.999))
    assert problems(**noise(1.25) | {"noise_multiplier": (1.26).hex()})
    assert problems(**noise(1.25) | {"noise_multiplier": ...})
    assert problems(**noise(1.25) | {"std": {}})


def test_every_trained_parameter_has_noise_and_no_other() -> None:
    name = max(K, key=lambda name: K[name])
    for std in (0.0, nextafter(0, 1)):
        made = noise(1.25)
        made["std"] = made["std"] | {name: std.hex()}
        assert problems(**made)
    made = noise(1.25)
    assert problems(**made | {"std": {other: std for other, std in made["std"].items() if other != name}})
    assert problems(**made | {"std": made["std"] | {"other": (1.0).hex()}})
