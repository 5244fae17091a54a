"""Where normals come from: entropy, independence, and the distribution itself."""

from __future__ import annotations

import math

import torch
from lipcompile_torch.runtime.normals import fresh_generator


def test_generators_carry_more_entropy_than_a_seed() -> None:
    # Torch keeps 32 bits of a CPU seed; if that ever changes, the filling of the state may go.
    few = [torch.rand(1, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5 + 2**40)]
    assert torch.equal(*few)
    words = fresh_generator().get_state().view(torch.int64)[3:627]
    assert int(words.max()) < 2**32
    assert len(set(words.tolist())) > 600
    # After the first block the state is a function of all the words: change the last, and later numbers change.
    one, other = torch.Generator(), torch.Generator()
    state = fresh_generator().get_state()
    one.set_state(state)
    state.view(torch.int64)[626] ^= 1
    other.set_state(state)
    assert not torch.equal(torch.rand(5000, generator=one), torch.rand(5000, generator=other))


def test_fresh_generators_give_uniform_numbers() -> None:
    # Mean of 10^6 uniforms within 6 standard errors: fails once in 5e8 runs. Ten bins, chi-square of 9 degrees
    # above 60: 1e-9.
    numbers = torch.rand(10**6, generator=fresh_generator(), dtype=torch.float64)
    assert abs(float(numbers.mean()) - 0.5) < 6 / math.sqrt(12 * 10**6)
    counts = torch.histc(numbers, 10, 0, 1)
    assert float(((counts - 1e5) ** 2 / 1e5).sum()) < 60
