"""Batches of one shape: no example changes how torch rounds the numbers of others, not even at kinks."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lipcompile_torch import ClipGroup, PrivacyEngine, layers
from lipcompile_torch.distributed import World
from lipcompile_torch.train.checks import PrivacyError
from lipcompile_torch.train.module import LipschitzModule
from lipcompile_torch.train.sampler import PrivateLoader
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import lipcompile
from tests.torch.clip_nets import NETWORKS, model
from tests.torch.private_net import Net, Recorder, data

HARDLY = 1e-9
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")


def private(module: Any, examples: TensorDataset, batch_size: int, **options: Any) -> Any:
    """Return the three private objects, with hardly any noise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no certificate, hardly any noise, or a seed
        return PrivacyEngine().make_private(
            module=module,
            optimizer=Recorder(module.parameters()),
            data_loader=DataLoader(examples, batch_size=batch_size),
            noise_multiplier=HARDLY,
            **{"fixed_shape": True, **options},
        )


def sum_over(triple: Any, examples: int) -> Tensor:
    """Return the sum of the gradients of the first so many examples, in the place of a random batch, flat."""
    module, optimizer, loader = triple
    loader.scheme.batch = lambda step: torch.arange(examples)  # noqa: ARG005
    x, y = next(iter(loader))
    module.criterion(module(x), y).backward()
    optimizer.step()
    found: Tensor = (
        torch.cat([gradient.flatten() for gradient in optimizer.optimizer.seen[-1]]) * module.normaliser
    )
    return found


# --- rows --------------------------------------------------------------------------------------------------------


def loader(size: int, batch_size: int, limit: int | None = None, **options: Any) -> PrivateLoader:
    x = torch.arange(size, dtype=torch.float32)
    theirs = DataLoader(TensorDataset(x), batch_size=batch_size)
    return PrivateLoader(theirs, limit, fixed_shape=True, **options)


class Rank(World):
    """One of two processes that draw by the same seed."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def first(self, doing: str, compute: Any) -> Any:  # noqa: ARG002
        """Run it on both: by one seed it gives the same."""
        return compute()


def places(drawn: PrivateLoader) -> dict[int, tuple[int, int]]:
    """Return the piece and the row of each example of one batch."""
    found = {}
    for (x,) in drawn:
        assert drawn.current is not None
        rows = drawn.current.rows
        assert rows is not None
        assert rows.count == 4
        assert len(x) == len(rows.taken) == len(set(rows.taken.tolist()))
        found.update({int(i): (drawn.current.position, int(row)) for i, row in zip(x, rows.taken, strict=True)})
        if drawn.current.complete:
            break
    return found


@pytest.mark.parametrize("seed", range(5))
def test_every_example_takes_a_row_of_one_process(seed: int) -> None:
    # b = 4: 4 + 8·2 + 16 = 36 examples are counted on, nine pieces of four, five for each of two processes.
    own = [loader(9, 4, 4, seed=seed, world=Rank(rank)) for rank in range(2)]
    for one in own:
        one.scheme.batch = lambda step: torch.arange(7)  # type: ignore[method-assign]  # noqa: ARG005
        assert one.pieces == 9
    first, second = map(places, own)
    assert sorted([*first, *second]) == list(range(7))
    assert {piece for piece, _ in [*first.values(), *second.values()]} <= set(range(5))


def test_an_example_more_leaves_the_places_of_others_as_likely_as_they_were() -> None:
    # Two examples take 12 pairs of places among four; with a third one as well. 6,000 draws each: a count is off
    # 1/12 of them by 6 standard errors in 24 · 2e-9 of all seeds.
    draws = 6000
    error = 6 * math.sqrt(draws / 12)
    for examples in (2, 3):
        drawn = loader(9, 4, seed=examples)
        found = Counter(tuple(drawn.scheme.places(examples, 4)[:2].tolist()) for _ in range(draws))
        assert len(found) == 12
        assert max(abs(count - draws / 12) for count in found.values()) < error


def test_rows_are_drawn_afresh_for_each_batch() -> None:
    # 300 batches put their first example into one of 36 rows: fewer than 30 rows come in 1e-21 of all seeds.
    drawn = loader(1200, 4, seed=0)
    drawn.scheme.batch = lambda step: torch.arange(2)  # type: ignore[method-assign]  # noqa: ARG005
    first = set()
    for _ in drawn:
        assert drawn.current is not None
        assert drawn.current.rows is not None
        assert drawn.current.rows.count == 36
        first.add(int(drawn.current.rows.taken[0]))
        drawn.close()
    assert len(first) >= 30


def test_more_examples_than_are_counted_on_arrive_in_more_pieces() -> None:
    drawn = loader(99, 1, 30, seed=0)  # 25 are counted on
    drawn.scheme.batch = lambda step: torch.arange(61)  # type: ignore[method-assign]  # noqa: ARG005
    sizes, complete = [], False
    for (x,) in drawn:
        assert drawn.current is not None
        sizes.append(len(x))
        complete = drawn.current.complete
        if complete:
            break
    assert complete
    assert len(sizes) == 3
    assert sum(sizes) == 61


# --- shapes ------------------------------------------------------------------------------------------------------


class Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the shapes of all matrix products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm):
            self.seen.append((str(func), *(tuple(arg.shape) for arg in args if isinstance(arg, Tensor))))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("by_clip", [False, True])
def test_all_steps_compute_in_one_shape(by_clip: bool) -> None:
    class Own(Net):
        clips = [ClipGroup("all", tuple(Net.bounds), 1.0)] if by_clip else []
        bounds = dict.fromkeys(Net.bounds, 1.0) if by_clip else Net.bounds

    module, optimizer, batches = private(Own(), data(60), 3)
    seen, sizes = set(), set()
    for x, y in batches:
        with Shapes() as shapes:
            module.criterion(module(x), y).backward()
        optimizer.step()
        seen.add(tuple(shapes.seen))
        sizes.add(len(x))
    assert len(sizes) > 3
    (products,) = seen
    assert products[0][1:] == ((8,), (33, 4), (4, 8))  # 3 + 8·√3 + 16 = 32.9 rows


def test_an_empty_batch_is_a_step_of_zeros() -> None:
    triple = private(Net(), data(60), 3)
    assert float(sum_over(triple, 0).abs().amax()) < 1e-7


# --- kinks -------------------------------------------------------------------------------------------------------


def at_kinks(equal: TensorDataset, length: float) -> Any:
    """Return a module whose hidden units are at the kink of ReLU in a batch of these examples, which are equal."""

    class Kinks(Net):
        input_shape = (784,)
        hidden = 128
        clips: ClassVar = [ClipGroup("all", tuple(Net.bounds), length)]
        bounds: ClassVar = dict.fromkeys(Net.bounds, length)
        input_trusted = True

        def __init__(self) -> None:
            LipschitzModule.__init__(self)
            self.inner, self.outer = layers.Dense(784, 128, bias=100.0), layers.Dense(128, 3)
            self.project_()

    torch.manual_seed(3)
    x = equal.tensors[0]
    module: Any = Kinks().to(x.device)
    with torch.no_grad():  # up to the last bit, which is that of another order of additions in another batch
        module.inner.bias.copy_(-nn.functional.linear(x, module.inner.weight)[0])
    return module


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
@pytest.mark.parametrize("examples", [16, 64, 139])
def test_an_example_less_moves_the_sum_by_its_own_gradient(examples: int, device: str) -> None:
    length, sums = 0.5, []
    x = torch.randn(1, 784, generator=torch.Generator().manual_seed(4)).to(device)
    labels = torch.zeros(examples, dtype=torch.long, device=device)
    equal = TensorDataset(x.expand(examples, 784).contiguous(), labels)
    for count in (examples, examples - 1):
        triple = private(at_kinks(equal, length), equal, examples, seed=0)
        sums.append(sum_over(triple, count))
    moved = float((sums[0].double() - sums[1].double()).norm())
    assert moved <= length * (1 + 1e-5)


# --- what is refused ---------------------------------------------------------------------------------------------


def test_a_part_of_a_batch_is_refused_with_the_fix() -> None:
    module, _, batches = private(Net(), data(60), 20)
    x, _ = next(iter(batches))
    with pytest.raises(ValueError, match="max_physical_batch"):
        module(x[:1])


def test_other_forward_passes_have_their_own_shapes() -> None:
    triple = private(Net(), data(60), 20)
    module, _, batches = triple
    assert module(torch.zeros(2, 4)).shape == (2, 3)  # before a batch is drawn
    next(iter(batches))
    with torch.no_grad():
        assert module(torch.zeros(2, 4)).shape == (2, 3)


def test_clipping_example_by_example_is_refused() -> None:
    module = nn.Linear(4, 3)
    with pytest.raises(PrivacyError, match="fixed_shape"):
        PrivacyEngine().make_private_by_clipping(
            module=module,
            optimizer=SGD(module.parameters(), 0.1),
            data_loader=DataLoader(data(8), batch_size=2),
            noise_multiplier=1.0,
            clipping=1.0,
            fixed_shape=True,
        )


def test_tokens_are_filled_up_too(tmp_path: Path) -> None:
    module = model(NETWORKS["tokens of a table"], tmp_path)
    type(module).certificate = {}
    tokens = TensorDataset(torch.ones(9, 7, dtype=torch.long), torch.zeros(9, dtype=torch.long))
    assert float(sum_over(private(module, tokens, 4), 3).norm()) > 0


class Direction(nn.Module):
    """Divides by a norm, which is that of zeros in the rows between examples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, 3]."""
        out: Tensor = self.outer(torch.relu(self.inner(x / x.norm(dim=1, keepdim=True))))
        return out


def test_rows_between_examples_may_have_no_gradient() -> None:
    torch.manual_seed(0)
    module, optimizer, batches = private(
        lipcompile.private(Direction(), torch.ones(2, 4), bounds="clip"), data(60), 6
    )
    for x, y in batches:
        module.criterion(module(x), y).backward()
        optimizer.step()
        found = torch.cat([gradient.flatten() for gradient in optimizer.optimizer.seen[-1]])
        assert bool(found.isfinite().all())
        assert (float(found.norm()) > 1e-3) == bool(len(x))
