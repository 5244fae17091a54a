"""The mean gradient over its noise, in one backward pass, against the gradients of the examples one by one."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch

from lipcompile.cli.shared.inputs import admissible
from lipcompile.core.backend import find, instantiate
from lipcompile.frontends.options import ModelOptions
from lipcompile.pipeline import check

MODEL = """model m {
  input x: tensor[1, 6, 6], norm <= 2
  conv2d(4, kernel=3) relu flatten dense(3)
  loss cross_entropy
}"""
CLIPPED = ModelOptions(bounds="clip", clip_length=Fraction(1, 1000))


@pytest.mark.parametrize("options", [ModelOptions(), CLIPPED])
@pytest.mark.parametrize("loss", ["cross_entropy", "mean_squared_error(target_norm=0.01)"])
def test_one_pass_gives_the_mean_over_noise_of_the_examples(
    loss: str, options: ModelOptions, tmp_path: Path
) -> None:
    """A clip of 0.001 is far below all gradients: then the mean is that of clipped ones. The loss refuses targets
    that are longer than 0.01, as normal ones are.
    """
    (tmp_path / "m.lip").write_text(MODEL.replace("cross_entropy", loss))
    derivation = check(str(tmp_path / "m.lip"), options)
    assert derivation.analysis is not None
    backend = find()
    with backend.signal.repeatable():
        module = instantiate(tmp_path / "m.py", backend.emit(derivation)).to(torch.float64)
    choices = admissible(backend.audit, derivation.analysis.graph)
    total = backend.signal.measure(module, choices).total
    assert backend.signal.mean_over_noise(module, choices) == pytest.approx(total.mean / total.noise, rel=1e-9)
