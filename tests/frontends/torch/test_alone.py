"""Modules that no rule covers are computed one example at a time, under a clip of their whole gradients."""

from __future__ import annotations

import copy
import json
import threading
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.nn.examples_alone import each_alone
from lipcompile_torch.nn.own_losses import OneByOneWarning
from lipcompile_verify import verify
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import lipcompile
from lipcompile import InputError
from lipcompile.__main__ import run
from lipcompile.frontends.torch import module as torch_module

SLOW = "one example at a time"
B, CLASSES = 5, 3
Batch = Tensor | dict[str, Tensor]


def half(x: Tensor) -> Tensor:
    """x/2, by an operation that no rule covers."""
    halved: Tensor = torch.linalg.solve(2 * torch.eye(x.shape[-1]).expand(len(x), -1, -1), x[..., None])
    return halved[..., 0]


class Net(nn.Module):
    """A layer behind a function of the whole batch."""

    def __init__(self, function: Callable[[Tensor], Tensor] = half, width: int = 4) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.layer(self.function(x))


class Parameters(nn.Module):
    """Parameters that are used twice, computed with, of one number, and frozen."""

    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.scale = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.tensor(0.5))
        self.shift = nn.Parameter(torch.randn(4), requires_grad=False)
        self.layer = nn.Linear(4, CLASSES)
        self.register_buffer("offset", torch.randn(4))

    def forward(self, x: Tensor) -> Any:
        system = self.matrix.T @ self.matrix + torch.eye(4)
        return self.layer(torch.linalg.solve(system, x + self.offset + self.shift, left=False) * self.scale)


class Complex(nn.Module):
    """A complex parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.spectrum, self.layer = nn.Parameter(torch.randn(3, dtype=torch.complex64)), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.layer(torch.fft.irfft(torch.fft.rfft(half(x)) * self.spectrum, n=4))


class Words(nn.Module):
    """Tokens, with a row of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(11, 6, padding_idx=0), nn.Linear(6, CLASSES)

    def forward(self, tokens: Tensor) -> Any:
        words = self.words(tokens)
        return self.layer(words.mean(1)) + torch.linalg.svdvals(words)[:, :CLASSES]


class Columns(nn.Module):
    """Numbers and categories."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(7, 4), nn.Linear(8, CLASSES)

    def forward(self, numbers: Tensor, categories: Tensor) -> Any:
        return self.layer(torch.cat([half(numbers), self.table(categories)], 1))


class Steps(nn.Module):
    """A number of steps that an example chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.layer = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Any:
        rows = []
        for row in x:
            for _ in range(1 + int(row[0].item() > 0)):
                row = torch.tanh(self.step(row))
            rows.append(self.layer(row))
        return torch.stack(rows)


def through_numpy(x: Tensor) -> Tensor:
    return x * torch.from_numpy(np.sort(x.detach().numpy(), 1))


def orthogonal() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, CLASSES))


NUMBERS = torch.randn(B, 4, generator=torch.Generator().manual_seed(1))
TOKENS = torch.arange(B * 5).reshape(B, 5) * 7 % 11
Y = torch.arange(B) % CLASSES
BOTH: Batch = {"numbers": NUMBERS, "categories": TOKENS[:, 0] % 7}
# Modules, batches, and whether torch.vmap cannot run the module.
MODULES: dict[str, tuple[Callable[[], nn.Module], Batch, bool]] = {
    "a linear system": (Net, NUMBERS, False),
    "parameters": (Parameters, NUMBERS, False),
    "a complex parameter": (Complex, NUMBERS, False),
    "tokens": (Words, TOKENS, False),
    "numbers and categories": (Columns, BOTH, False),
    "a loop": (Steps, NUMBERS, True),
    "numpy": (lambda: Net(through_numpy), NUMBERS, True),
    "a parametrisation": (orthogonal, NUMBERS, False),
}


def called(module: Any, x: Batch) -> Tensor:
    output: Tensor = module(**x) if isinstance(x, dict) else module(x)
    return output


def private(module: nn.Module, x: Batch, **options: Any) -> Any:
    with pytest.warns(UserWarning) as told:  # noqa: PT030  (of padding, besides)
        made = lipcompile.private(module, x, bounds="clip", **options)
    assert sum(SLOW in str(one.message) for one in told) == 1
    return made


def clipped_by_hand(module: nn.Module, x: Batch) -> dict[str, Tensor]:
    """Return Σ g_i/(‖g_i‖ + 0.01) of the gradients of examples, each by a backward pass of the module itself."""
    named = {name: one for name, one in module.named_parameters() if one.requires_grad}
    sums = {name: torch.zeros_like(one) for name, one in named.items()}
    for i in range(B):
        row = {name: one[i : i + 1] for name, one in x.items()} if isinstance(x, dict) else x[i : i + 1]
        loss = F.cross_entropy(called(module, row), Y[i : i + 1])
        gradients = torch.autograd.grad(loss, list(named.values()))
        norm = torch.cat([one.flatten() for one in gradients]).norm()
        for name, one in zip(named, gradients, strict=True):
            sums[name] += one / (norm + 0.01)
    return sums


@pytest.mark.filterwarnings("ignore::lipcompile_torch.nn.own_losses.OneByOneWarning")
@pytest.mark.parametrize("name", MODULES)
def test_a_step_is_that_of_gradients_clipped_by_hand(name: str) -> None:
    """One step of gradient descent at rate 1, without noise, back in the module."""
    torch.manual_seed(0)
    make, x, _ = MODULES[name]
    module = make()
    made, steps = private(module, x), clipped_by_hand(module, x)
    made.guard_layers()
    made.gate.reset()
    made.criterion(called(made, x), Y).backward()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter -= parameter.grad
    before = {name: one.detach().clone() for name, one in module.named_parameters()}
    lipcompile.load_trained(module, made, x)
    for name, one in module.named_parameters():
        torch.testing.assert_close(one.detach(), before[name] - steps.get(name, 0), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::lipcompile_torch.nn.own_losses.OneByOneWarning")
@pytest.mark.parametrize("name", MODULES)
def test_outputs_are_those_of_the_module(name: str) -> None:
    torch.manual_seed(0)
    make, x, _ = MODULES[name]
    module = make()
    made = private(module, x)
    torch.testing.assert_close(called(made, x), called(module, x), rtol=1e-4, atol=1e-5)
    none: Any = {key: one[:0] for key, one in x.items()} if isinstance(x, dict) else x[:0]
    empty = called(made, none)
    assert empty.shape == (0, CLASSES)
    empty.sum().backward()  # type: ignore[no-untyped-call]  # as of a batch that nobody was drawn into
    assert not verify(made.certificate).problems


class Caching(Net):
    """Keeps a tensor of its last call."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        self.last = half(x)
        return self.layer(self.last)


def test_nothing_of_a_trace_is_left_in_a_module() -> None:
    """It would be a tensor without numbers, which no later call can use."""
    module = Caching()
    made = private(module, NUMBERS, verify_import=False)
    assert module.last is None
    torch.testing.assert_close(made(NUMBERS), module.layer(half(NUMBERS)))


class Cached(Net):
    """Keeps a tensor for each module that it was called of."""

    @lru_cache  # noqa: B019  (as people write it)
    def factors(self, count: int) -> Tensor:
        return self.layer.weight.abs().mean() * torch.ones(count)

    def forward(self, x: Tensor) -> Any:
        return self.layer(half(x) * self.factors(4))


def test_a_tensor_of_a_trace_in_a_cache_of_the_class_is_no_error() -> None:
    """The check of the import meets it, and says so where notes are printed."""
    made = private(module := Cached(), NUMBERS)
    Cached.factors.cache_clear()
    torch.testing.assert_close(made(NUMBERS), module(NUMBERS))


@pytest.mark.filterwarnings("ignore:.*one example at a time")
def test_a_module_that_is_another_one_of_larger_batches_is_told() -> None:
    """The check of an import has eight examples."""
    with pytest.raises(InputError, match="something else of a batch than of its examples alone"):
        lipcompile.private(Net(lambda x: half(x) if len(x) != 8 else half(x.flip(0))), NUMBERS, bounds="clip")


@pytest.mark.parametrize("name", [name for name, (_, _, is_slow) in MODULES.items() if is_slow])
def test_what_vmap_cannot_run_is_computed_in_a_loop_and_told(name: str) -> None:
    make, x, _ = MODULES[name]
    made = private(make(), x, verify_import=False)
    with pytest.warns(OneByOneWarning, match="cannot run the network"):
        called(made, x)


class Straight(torch.autograd.Function):
    """The identity, whose gradients are those of all examples."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # noqa: ARG004
        return gradient + gradient.mean(0)


class Backwards(Net):
    def forward(self, x: Tensor) -> Any:
        return Straight.apply(self.layer(half(x)))  # type: ignore[no-untyped-call]


class Listed(Net):
    """A weight where no copy of it can take its place."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [self.layer.weight]

    def forward(self, x: Tensor) -> Any:
        return half(x) @ self.hidden[0].T


@pytest.mark.parametrize(
    "make",
    [
        lambda: Net(lambda x: half(x) - x.mean(0)),
        lambda: Net(lambda x: half(x) * (1 + int(x.sum().item() > 0))),
        lambda: Net(lambda x: half(x.flip(0))),
        Backwards,
        Listed,
    ],
)
def test_what_is_another_function_alone_is_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(InputError, match=r"LIP108|LIP120|LIP100"):
        lipcompile.private(make(), NUMBERS, bounds="clip")


def test_a_module_that_draws_in_evaluation_is_refused() -> None:
    with pytest.raises(InputError, match="LIP1"):
        lipcompile.private(Net(lambda x: half(x) * torch.bernoulli(x.sigmoid())), NUMBERS, bounds="clip")


OWN_GENERATOR = torch.Generator().manual_seed(0)


class Kept(Net):
    """In training, keeps something of a call where a copy of the module has it too."""

    mean, largest = torch.zeros(4), [0.0]

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Any:
        return self.layer(self.kept(half(x)) if self.training else half(x))

    def kept(self, x: Tensor) -> Tensor:
        if self.way == "mean":
            self.mean.mul_(0.9).add_(x.detach().mean(0))
            return x - self.mean
        if self.way == "largest":
            self.largest.append(float(x.detach().abs().max()))
            return x / max(self.largest)
        return x * (torch.rand(x.shape, generator=OWN_GENERATOR) > 0.5)


@pytest.mark.parametrize("way", ["mean", "largest", "generator"])
def test_a_module_that_keeps_something_of_a_call_is_refused(way: str) -> None:
    with pytest.raises(InputError, match=r"something else of the same examples in each call"):
        lipcompile.private(Kept(way), NUMBERS, bounds="clip")


class Aliased(Net):
    """In training, beside dropout, a weight where no copy of it can take its place."""

    def __init__(self, is_checkpoint: bool) -> None:
        super().__init__()
        self.hidden, self.is_checkpoint = [self.layer.weight], is_checkpoint

    def forward(self, x: Tensor) -> Any:
        if not self.training:
            return self.layer(half(x))
        if self.is_checkpoint:
            x = checkpoint(lambda row: half(row * self.layer.weight[0]), x, use_reentrant=False)
            return self.layer(F.dropout(x, 0.5))
        return F.dropout(half(x), 0.5) @ self.hidden[0].T


@pytest.mark.parametrize("is_checkpoint", [False, True])
def test_parameters_of_training_have_copies_beside_dropout(is_checkpoint: bool) -> None:
    with pytest.raises(InputError, match="LIP100"):
        lipcompile.private(Aliased(is_checkpoint), NUMBERS, bounds="clip")


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Any:
        return self.layer(self.norm(half(x)))


def test_statistics_of_the_batch_are_refused_or_replaced() -> None:
    with pytest.raises(InputError, match="LIP101"):
        lipcompile.private(Normed(), NUMBERS, bounds="clip")
    module = Normed()
    made = private(module, NUMBERS, batch_norm="group_norm")
    grouped = F.group_norm(half(NUMBERS), 1, module.norm.weight, module.norm.bias, 1e-5)
    torch.testing.assert_close(made(NUMBERS), module.layer(grouped))
    torch.testing.assert_close(private(module.eval(), NUMBERS)(NUMBERS), module(NUMBERS))


class Remembering(Net):
    """Keeps what it has seen, in a buffer and in a list."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        before = sum(self.seen, self.mean.clone())
        self.seen.append(x.detach().sum(0))
        self.mean += x.detach().mean(0)
        return self.layer(half(x) + before)


@pytest.mark.filterwarnings("ignore::lipcompile_torch.nn.own_losses.OneByOneWarning")
def test_nothing_is_left_for_other_examples() -> None:
    module = Remembering()
    made = private(module, NUMBERS, verify_import=False)
    first, second = made(NUMBERS), made(NUMBERS)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, module.layer(half(NUMBERS)))
    assert "LIP126" in {one.code for one in lipcompile.from_module(module, NUMBERS, bounds="clip").diagnostics}
    assert not made.own_network.module.seen
    assert not made.own_network.module.mean.any()


@pytest.mark.parametrize("token", [-1, 11, 15])
def test_no_token_beyond_a_table_reads_that_of_another_example(token: int) -> None:
    """Each example has a copy of the table: under `vmap` torch reads the next example's row there."""
    made, tokens = private(Words(), TOKENS), TOKENS.clone()
    tokens[1, 2] = token
    if token >= 0:
        with pytest.raises(IndexError, match="out of bounds"):
            made(tokens)
        return
    assert torch.equal(made(tokens)[[0, 2, 3, 4]], made(TOKENS)[[0, 2, 3, 4]])


# What vmap would compute of all examples at once


def root_of(matrix: Tensor) -> Tensor:
    root: Tensor = torch.linalg.cholesky(matrix)
    return root


def rooted(x: Tensor, root_of: Callable[[Tensor], Tensor] = root_of) -> Tensor:
    """x/2; of an example whose matrix of products is not positive, x/4, as Gaussian processes are written."""
    matrix = torch.diag_embed(4 * (1 - (x[:, :1] > 5).float()).expand_as(x))
    try:
        root = root_of(matrix)
    except RuntimeError:
        root = root_of(matrix + 16 * torch.eye(4))
    solved: Tensor = torch.linalg.solve_triangular(root, x[..., None], upper=False)
    return solved[..., 0]


def scripted() -> Callable[[Tensor], Tensor]:
    root = torch.jit.script(root_of)
    return lambda x: rooted(x, root)


class Centred(torch.autograd.Function):
    """The identity, whose rule for vmap centres large examples."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # noqa: ARG004
        return gradient

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:  # noqa: ARG004
        return centred(x), 0


def centred(x: Tensor) -> Tensor:
    return torch.where(x.amax() > 5, x - x.mean(0), x)


@torch.library.custom_op("lipcompile_tests::same", mutates_args=())
def same(x: Tensor) -> Tensor:
    return x.clone()


same.register_autograd(lambda _, gradient: gradient)
same.register_vmap(lambda _info, _dims, x: (centred(x), 0))


class Rooted(Tensor):
    """Tensors whose Cholesky factor is that of the unit matrix where there is none."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        except RuntimeError:
            unit = torch.eye(4).expand_as(args[0])
            return super().__torch_function__(func, types, (unit,))  # type: ignore[no-untyped-call]


def by_class(x: Tensor) -> Tensor:
    return rooted(x, lambda matrix: root_of(matrix.as_subclass(Rooted)).as_subclass(Tensor))


def by_function(x: Tensor) -> Tensor:
    found: Tensor = Centred.apply(half(x))  # type: ignore[no-untyped-call]
    return found


def by_operator(x: Tensor) -> Tensor:
    return half(same(x))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: rooted, "after an error"),
        (scripted, "nobody sees"),
        (lambda: by_function, "author's"),
        (lambda: by_class, "author's"),
        (lambda: by_operator, "author's"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_no_example_decides_on_the_others(make: Callable[[], Callable[[Tensor], Tensor]], reason: str) -> None:
    """An error of one example that is caught, and rules for vmap that somebody wrote, touch all of a batch."""
    torch.manual_seed(0)
    made = private(module := Net(make()), NUMBERS, verify_import=False)
    x = NUMBERS.clone()
    x[2] = 9
    of_two = {"after an error": 0.25, "nobody sees": 0.25, "author's": 1.0 if make() is by_class else 0.5}[reason]
    factors = [of_two if i == 2 else 0.5 for i in range(B)]
    expected = torch.cat([module.layer(factor * row) for factor, row in zip(factors, x, strict=True)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OneByOneWarning)
        made(NUMBERS[:2])  # the first batch
    with pytest.warns(OneByOneWarning, match=reason):
        found = made(x)
    torch.testing.assert_close(found.flatten(), expected)


class Masked(Net):
    """In training, masks that everyone knows, beside dropout."""

    share = 0.5

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Any:
        if self.training:
            x = F.dropout(x * self.mask(x), self.share)
        return self.layer(half(x))

    def mask(self, x: Tensor) -> Tensor:
        if self.way == "generator":
            return torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) + 0.5
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return torch.rand(x.shape) + 0.5


def test_no_place_in_a_batch_has_a_mask_that_everyone_knows() -> None:
    """An example that is left out would move those behind it to other masks."""
    made = private(Masked("seed"), NUMBERS, verify_import=False)
    torch.manual_seed(7)
    with pytest.warns(OneByOneWarning, match="seeds torch's generator"):
        made(NUMBERS)
    made.own_network.module.share = 0.0
    with pytest.warns(OneByOneWarning):
        whole = made(NUMBERS)
    with pytest.warns(OneByOneWarning):
        torch.testing.assert_close(made(NUMBERS[1:]), whole[1:])
    with pytest.raises(InputError, match="LIP108"):
        lipcompile.private(Masked("generator"), NUMBERS, bounds="clip")
    with pytest.raises(ValueError, match="draws from a generator of its own"):
        alone_of(lambda x: x * torch.rand(x.shape, generator=OWN_GENERATOR), NUMBERS)


class Waiting(Net):
    """Waits for a second pass to begin, but not for long."""

    second, inside, most = threading.Event(), 0, 0

    def forward(self, x: Tensor) -> Any:
        Waiting.inside += 1
        Waiting.most = max(Waiting.most, Waiting.inside)
        if Waiting.inside > 1:
            self.second.set()
        self.second.wait(0.2)
        Waiting.inside -= 1
        return self.layer(half(x))


@pytest.mark.slow
def test_passes_of_threads_do_not_overlap() -> None:
    """One that begins within another would leave it the weights and attributes of its own examples."""
    made = private(Waiting(), NUMBERS, verify_import=False)
    made(NUMBERS)
    threads = [threading.Thread(target=torch.no_grad()(made), args=(NUMBERS,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Waiting.most == 1


def test_a_batch_is_not_written_into() -> None:
    made, x = private(Net(lambda x: half(x.mul_(2))), NUMBERS, verify_import=False), NUMBERS.clone()
    made(x)
    assert torch.equal(x, NUMBERS)


# What torch's rules for vmap do with places that there are not


def rows_of(tokens: Tensor, table: Tensor) -> Tensor:
    return torch.nn.functional.embedding(tokens, table)


def filled_of(tokens: Tensor, table: Tensor) -> Tensor:
    return torch.index_fill(table, 0, tokens, 1.5)


class Rows(torch.autograd.Function):
    """Rows of a table, whose gradient is one of torch's library of operators."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tokens: Tensor, table: Tensor) -> Tensor:
        return table[tokens.clamp(0, 10)]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return None, torch.ops.aten.embedding_dense_backward(gradient, *ctx.saved_tensors, 11, -1, False)


class Filled(Rows):
    """The same, with another function in its gradient that vmap computes for all examples at once."""

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (tokens,) = ctx.saved_tensors
        return None, torch.index_fill(gradient.new_zeros(11, 6), 0, tokens, 1.5)


@pytest.mark.parametrize(
    "make", [lambda: torch.jit.script(rows_of), lambda: torch.jit.script(filled_of), lambda: Rows, lambda: Filled]
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::lipcompile_torch.nn.own_losses.OneByOneWarning")
def test_no_place_is_taken_from_another_example_unseen(make: Callable[[], Any]) -> None:
    """Of what is scripted, and in backward passes, nobody sees the places: such examples pass in a loop."""
    made, owner = make(), Words()
    take = getattr(made, "apply", made)
    copies = torch.randn(3, 11, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    tokens = torch.tensor([[0, 1], [2, 3], [4, 5]])
    for is_training in (False, True):
        with pytest.warns(OneByOneWarning):
            each_alone(take, tokens, copies, what="the network", owner=owner, is_training=is_training)
    tokens[1, 1] = 11  # under vmap, the first row of the last example
    with pytest.raises((IndexError, RuntimeError), match=r"range|bounds"):
        raise_unless_untouched(each_alone(take, tokens, copies, what="the network", owner=owner), copies)


def raise_unless_untouched(rows: Tensor, copies: Tensor) -> None:
    """Raise IndexError where the first row of the last of three examples has no gradient of another example."""
    rows.sum().backward()  # type: ignore[no-untyped-call]
    assert copies.grad is not None
    assert not copies.grad[2, 0].any()
    raise IndexError("out of range")


def alone_of(function: Callable[..., Tensor], *given: Tensor) -> Tensor:
    return each_alone(function, *given, what="the loss", owner=Words())


@pytest.mark.filterwarnings("ignore::lipcompile_torch.nn.own_losses.OneByOneWarning")
def test_no_label_reads_scores_that_it_has_not() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, lengths = torch.randn(3, 6, 1, 4, generator=generator).log_softmax(-1), ([6], [2])
    labels = torch.tensor([[[1, 2]], [[2, 0]], [[3, 1]]])
    for function in (torch._ctc_loss, torch.ops.aten._ctc_loss):
        found = alone_of(lambda s, t, f=function: f(s, t, *lengths)[0], scores, labels)
        for unknown in (-1, 4):
            others = labels.clone()
            others[1, 0, 1] = unknown
            assert torch.equal(found, alone_of(lambda s, t, f=function: f(s, t, *lengths)[0], scores, others))
    with pytest.raises(ValueError, match="would reach the numbers of other examples"):
        alone_of(
            lambda t, g: torch.ops.aten.embedding_dense_backward(g, t, 4, -1, False), labels[:, 0], scores[:, :2]
        )
    with pytest.raises(ValueError, match="segment_reduce"):
        alone_of(lambda s, n: torch.segment_reduce(s, "sum", offsets=n), scores[:, :, 0], labels[:, 0])


@pytest.mark.parametrize("place", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_places_of_an_image_that_are_no_numbers_stay_in_it(place: float, padding: str) -> None:
    """Torch writes outside of the gradient there."""
    generator = torch.Generator().manual_seed(0)
    images, places = torch.randn(3, 1, 5, 4, generator=generator), torch.rand(3, 2, 2, 2, generator=generator)
    gradients = []
    for value in (0.25, place):
        places[1] = value
        images.grad = None
        own, at = images.clone().requires_grad_(), places.clone().requires_grad_()
        rows = alone_of(
            lambda x, p: F.grid_sample(x[None], p[None], padding_mode=padding, align_corners=False), own, at
        )
        rows.square().sum().backward()  # type: ignore[no-untyped-call]
        assert own.grad is not None
        assert at.grad is not None
        gradients.append(torch.cat([own.grad[[0, 2]].flatten(), at.grad[[0, 2]].flatten()]))
    assert torch.equal(*gradients)


class Scaled(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Numbers of small range, as in eight bits: sines of shares of the largest number, if it is above 5."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (packed(args[0]), *args[1:]) if func is torch.ops.aten.sin.default else args
        return func(*given, **(kwargs or {}))


def packed(x: Tensor) -> Tensor:
    largest = x.abs().amax()
    return torch.where(largest > 5, x / largest, x)


def within_a_mode(x: Tensor) -> Tensor:
    with Scaled():  # type: ignore[no-untyped-call]
        return torch.sin(x)


def within_hooks(x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(packed, lambda saved: saved):
        return torch.sin(x)


@pytest.mark.parametrize(("function", "output", "gradient"), [(within_a_mode, 1, 9), (within_hooks, 9, 1)])
def test_what_works_below_vmap_is_given_one_example(
    function: Callable[[Tensor], Tensor], output: int, gradient: int
) -> None:
    """Modes of dispatch, and hooks of saved tensors, are given the numbers of all examples there.

    output, gradient: where the sine, and the cosine, of the last example are taken.
    """
    x, owner = torch.tensor([[1.0], [2.0], [9.0]], requires_grad=True), Words()
    with pytest.warns(OneByOneWarning, match="saved_tensors_hooks"):
        each_alone(function, x[:2], what="the network", owner=owner)
    with pytest.warns(OneByOneWarning, match="saved_tensors_hooks"):
        found = each_alone(function, x, what="the network", owner=owner)
    torch.testing.assert_close(found.detach(), torch.tensor([[1.0], [2.0], [output]]).sin())
    found.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(x.grad, torch.tensor([[1.0], [2.0], [gradient]]).cos())


def test_the_first_examples_do_not_decide_how_others_are_computed() -> None:
    """Under `vmap` torch's gradient of `select_scatter` is twice that of one example, which is 0 of the first."""

    def scattered(row: Tensor) -> Tensor:
        return torch.select_scatter(torch.zeros(2, 3), torch.relu(row), 0, 1).sum()

    x = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, -1.0], [1.0, 2.0, -3.0]], requires_grad=True)
    with pytest.warns(OneByOneWarning, match="another one"):
        alone_of(scattered, x).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 0]]

    def entropy(row: Tensor) -> Tensor:  # which refuses normal numbers
        return F.binary_cross_entropy(row.square(), torch.zeros(3)) + scattered(row)

    small = (0.1 * x).detach().requires_grad_()
    with pytest.warns(OneByOneWarning, match="another one"):
        found = alone_of(entropy, small)
    torch.autograd.backward(found.sum())
    squares = small.detach().square()  # of which -log(1 - p²) has the gradient 2p/(1 - p²), here a third of it
    expected = 2 * small.detach() / (1 - squares) / 3 + (small.detach() > 0)
    torch.testing.assert_close(small.grad, expected)


def test_a_zero_of_one_example_decides_on_no_product_of_others() -> None:
    """Torch divides products by their factors unless one of a batch is 0: of a product that overflows that is no
    number, and the gradient 1/(1 + p)² of a bounded function of it is 0.
    """
    x = torch.tensor([[2.0, 3.0], [1e30, 1e30], [4.0, 5.0]])
    for last in (5.0, 0.0):
        rows = x.clone()
        rows[2, 1] = last
        rows.requires_grad_()
        alone_of(lambda row: 1 / (1 + row.prod(-1)), rows).sum().backward()  # type: ignore[no-untyped-call]
        assert rows.grad is not None
        torch.testing.assert_close(rows.grad[:2], torch.tensor([[-3 / 49, -2 / 49], [0.0, 0.0]]))


@pytest.mark.parametrize(
    ("shape", "dim"), [((), None), ((7,), None), ((2, 5, 3), 1), ((2, 5, 3), -3), ((3, 0), 1)]
)
@pytest.mark.parametrize("kind", [torch.float32, torch.complex64, torch.int64])
def test_products_are_those_of_torch(shape: tuple[int, ...], dim: int | None, kind: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (3 * torch.randn(4, *shape, generator=generator)).to(kind)
    for named in ({},) if dim is None else ({"dim": dim}, {"dim": dim, "keepdim": True}):
        expected = torch.stack([row.prod(**named) for row in x])
        torch.testing.assert_close(alone_of(lambda row, given=named: row.prod(**given), x), expected)


def test_a_system_is_solved_without_pivots_of_another() -> None:
    """Torch's default for least squares reads a memory of pivots that it has not set: of a column of zeros the
    solution was 0. That of the smallest length is the mean of the right sides, in the other column of ones.
    """
    systems = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]).expand(3, 3, 2)
    sides = torch.tensor([[[1.0], [2.0], [6.0]], [[2.0], [2.0], [2.0]], [[0.0], [1.0], [2.0]]])
    found = alone_of(lambda a, b: torch.linalg.lstsq(a, b).solution[:, 0], systems, sides)
    torch.testing.assert_close(found, torch.tensor([[0.0, 3.0], [0.0, 2.0], [0.0, 1.0]]))


class Recomputed(Net):
    """A part that the backward pass computes again, by then with the weights that the module has."""

    def forward(self, x: Tensor) -> Any:
        return self.layer(checkpoint(half, x * self.layer.weight[0], use_reentrant=False))


class OfWeights(Recomputed):
    def forward(self, x: Tensor) -> Any:
        return self.layer(checkpoint(lambda row: half(row * self.layer.weight[0]), x, use_reentrant=False))


@pytest.mark.filterwarnings("ignore::lipcompile_torch.nn.own_losses.OneByOneWarning")
def test_what_is_computed_again_has_the_same_weights_or_is_refused() -> None:
    with pytest.raises(InputError, match="LIP1"):
        lipcompile.private(OfWeights(), NUMBERS, bounds="clip")
    module = Recomputed()
    made, steps = private(module, NUMBERS), clipped_by_hand(module, NUMBERS)
    made.guard_layers()
    made.gate.reset()
    made.criterion(made(NUMBERS), Y).backward()
    torch.testing.assert_close(made.layer_weight.bias.grad, steps["layer.weight"], rtol=1e-4, atol=1e-5)


def test_each_example_draws_its_own_masks() -> None:
    module = nn.Sequential(Net(), nn.Dropout(0.5))
    made = private(module, NUMBERS)
    rows = made(NUMBERS[:1].expand(200, -1))
    assert len({tuple(row.tolist()) for row in rows}) == 2**CLASSES  # all but one in 10¹⁰ of such draws
    assert torch.equal(made.eval()(NUMBERS), made(NUMBERS))
    assert torch.equal(copy.deepcopy(made)(NUMBERS), made(NUMBERS))


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_it_computes_with_the_numbers_that_it_was_imported_with(kind: torch.dtype) -> None:
    module = Net()
    made = private(module, NUMBERS).to(kind)
    found = made(NUMBERS.to(kind))
    assert found.dtype == kind
    torch.testing.assert_close(found.float(), module(NUMBERS), rtol=2e-2, atol=2e-2)


@pytest.mark.filterwarnings("ignore:a fixed seed makes the noise predictable")
def test_a_private_training_in_pieces() -> None:
    """Pieces of a batch give the steps of the whole."""
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    data, finals = TensorDataset(x, (x[:, 0] > 0).long()), []
    for piece in (None, 3):
        torch.manual_seed(0)
        module, optimizer, loader = PrivacyEngine().make_private(
            module=(made := private(Net(), x)),
            optimizer=torch.optim.SGD(made.parameters(), lr=0.5),
            data_loader=DataLoader(data, batch_size=10),
            noise_multiplier=1.0,
            max_physical_batch=piece,
            seed=3,
        )
        for inputs, labels in loader:
            optimizer.zero_grad()
            module.criterion(module(inputs), labels).backward()
            optimizer.step()
        finals.append(torch.cat([one.detach().flatten() for one in module.parameters()]))
    torch.testing.assert_close(*finals)


class Without(Net):
    """A parameter of no entries."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0, 3))


def test_a_parameter_of_no_entries_stays_as_it_is() -> None:
    made = private(module := Without(), NUMBERS)
    torch.testing.assert_close(made(NUMBERS), module(NUMBERS))
    lipcompile.load_trained(module, made, NUMBERS)


class Half(Net):
    def __init__(self) -> None:
        super().__init__()
        self.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Any:
        return self.layer(half(x.float()).to(self.layer.weight.dtype))


def test_sums_of_half_precision_may_differ_by_rounding() -> None:
    module = Half()
    found = private(module, NUMBERS.bfloat16())(NUMBERS)
    torch.testing.assert_close(found, module(NUMBERS.bfloat16()).float(), rtol=2e-2, atol=2e-2)


KEPT: dict[str, Tensor] = {}


def kept(x: Tensor) -> Tensor:
    """What the trace of the module has left in a cache is no tensor of numbers."""
    return half(x) * KEPT.setdefault("factors", torch.arange(4.0))


class Mutating(Net):
    """Torch asserts that its backward pass runs within this context as well."""

    def forward(self, x: Tensor) -> Any:
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            return super().forward(x).sin()


class Cut(Net):
    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            return super().forward(x)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(3)), "LIP023"),
        (lambda: Net(kept), "LIP100"),
        (Mutating, "LIP100"),
        (Cut, "LIP100"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_what_has_no_gradients_or_no_shape_is_refused(make: Callable[[], nn.Module], code: str) -> None:
    KEPT.clear()
    with pytest.raises(InputError, match=code):
        lipcompile.private(make(), NUMBERS, bounds="clip")


# From the command line

PROGRAM = """import torch
from torch import nn

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("shift", torch.full((4,), {shift}))

    def forward(self, x):
        system = 2 * torch.eye(4).expand(len(x), -1, -1)
        return self.layer(torch.linalg.solve(system, (x + self.shift)[..., None])[..., 0])
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], str]:
    """Write a module of Python with a network, and return its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])

    def write(shift: float) -> str:
        name = f"own_nets_{tmp_path.name}_{shift}".replace(".", "_").replace("-", "_")
        (tmp_path / f"{name}.py").write_text(PROGRAM.format(shift=shift))
        return f"{name}:Odd"

    return write


def test_from_training_to_predictions(nets: Callable[[float], str], capsys: pytest.CaptureFixture[str]) -> None:
    network = [nets(0.5), "--input-shape", "4", "--loss", "cross_entropy"]
    assert run(["check", *network]) == 1
    assert "or use --bounds clip, which computes such a module" in capsys.readouterr().out
    assert run(["check", *network, "--bounds", "auto"]) == 0
    budget = ["--data", "data.npz", "--epsilon", "3", "--delta", "1e-3", "--epochs", "1", "--output", "run"]
    assert run(["train", *network, *budget]) == 0
    assert run(["verify", "run"]) == 0
    assert run(["predict", "run", "data.npz"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 20
    assert run(["export", "run", "-o", "run.onnx"]) == 2
    assert "torch.onnx.export" in capsys.readouterr().err


def test_a_network_that_draws_its_buffers_is_refused_before_it_is_trained(
    nets: Callable[[float], str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = nets(0.5)
    file = Path(f"{name.partition(':')[0]}.py")
    file.write_text(file.read_text().replace("torch.full((4,), 0.5)", "torch.randn(4)"))
    options = ["--input-shape", "4", "--loss", "cross_entropy", "--data", "data.npz", "--epsilon", "3"]
    assert run(["train", name, *options, "--delta", "1e-3", "--epochs", "1", "--output", "run"]) == 2
    assert "has other buffers, or frozen parameters, each time it is made" in capsys.readouterr().err
    assert not Path("run").exists()


def test_a_run_knows_its_network(nets: Callable[[float], str], capsys: pytest.CaptureFixture[str]) -> None:
    """Its parts and what it does not train: of a module that has changed since, and of none."""
    options = ["--input-shape", "4", "--loss", "cross_entropy", "--data", "data.npz", "--epsilon", "3"]
    assert run(["train", nets(0.5), *options, "--delta", "1e-3", "--epochs", "1", "--output", "run"]) == 0
    place = Path("run/network.json")
    said = json.loads(place.read_text())
    place.write_text(json.dumps({**said, "module": nets(0.25)}))
    assert run(["predict", "run", "data.npz"]) == 2
    assert "is another module than the one" in capsys.readouterr().err
    for text in ("{", "[]", '{"module": "nets:Odd"}', None):
        place.unlink() if text is None else place.write_text(text)
        assert run(["predict", "run", "data.npz"]) == 2
        assert "does not say where it is" in capsys.readouterr().err


def test_a_network_is_found_again_without_a_trace(
    nets: Callable[[float], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second trace in one process may find another network, as where code keeps what it has computed."""
    options = ["--input-shape", "4", "--loss", "cross_entropy", "--data", "data.npz", "--epsilon", "3"]
    assert run(["train", nets(0.5), *options, "--delta", "1e-3", "--epochs", "1", "--output", "run"]) == 0
    monkeypatch.setattr(torch_module, "_read", None)
    assert run(["predict", "run", "data.npz"]) == 0


def test_weights_of_a_folder_go_back_into_the_module(tmp_path: Path) -> None:
    x = NUMBERS.numpy().repeat(8, 0)
    y = (x[:, 0] > 0).astype(np.int64)
    module = Net()
    with pytest.warns(UserWarning, match=SLOW):
        lipcompile.train(
            module, (x, y, x, y), tmp_path / "run", loss="cross_entropy", epsilon=8, delta=1e-2, epochs=1
        )
    lipcompile.load_trained(mine := Net(), tmp_path / "run", NUMBERS)
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=False)["states"]["module"]
    assert torch.equal(mine.layer.weight, state["layer_weight.bias"])
    assert not torch.equal(mine.layer.weight, module.layer.weight)
