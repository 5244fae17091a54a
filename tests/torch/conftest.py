"""Whose passes over memory are tested."""

from __future__ import annotations

import pytest
from lipcompile_torch import native


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's operations, as on a machine without a compiler."""
    monkeypatch.setattr(native, "kernels", None)


@pytest.fixture(params=["native", "by torch"])
def passes(request: pytest.FixtureRequest) -> None:
    """Native code, and torch's operations."""
    if request.param == "by torch":
        request.getfixturevalue("without_kernels")
    elif native.kernels is None:
        pytest.skip("the package was installed without a compiler")
