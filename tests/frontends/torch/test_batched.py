"""Modules that are read from the trace of one example: the same for each example of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lipcompile_verify import verify
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

import lipcompile
from lipcompile import InputError
from lipcompile.frontends.silence import silence
from lipcompile.frontends.torch.module import examples_of
from lipcompile.frontends.torch.rerun.batched import batched
from lipcompile.frontends.torch.tracing import traced
from lipcompile.frontends.torch.untraceable import Untraceable
from lipcompile.pipeline import from_module

B, C, T = 5, 6, 4  # examples, channels, places
CLASSES = 3
X = torch.randn(B, T, C, generator=torch.Generator().manual_seed(1))
Y = torch.arange(B) % CLASSES


class Net(nn.Module):
    """Layers of all kinds, and what a function makes of them and an input [B, T, C]: [B, …]."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.linear, self.norm = nn.Linear(C, C), nn.LayerNorm(C)
        self.conv, self.image, self.back = nn.Conv1d(C, 4, 3), nn.Conv2d(1, 2, 3), nn.ConvTranspose1d(C, 2, 3)
        self.group, self.batch = nn.GroupNorm(2, C), nn.BatchNorm1d(C).eval()
        self.lstm, self.gru = nn.LSTM(C, 5, batch_first=True), nn.GRU(C, 5, bidirectional=True)
        self.words, self.weight = nn.Embedding(7, C), nn.Parameter(torch.randn(C, T))
        self.attention = nn.MultiheadAttention(C, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.linear(x))


def written(_net: Any, h: Tensor) -> Tensor:
    made = torch.zeros(1, T, C)
    made[:, 1:] = h[:, :-1]
    made[:, 0].add_(1.0)
    return made


def columns(_net: Any, h: Tensor) -> Tensor:
    h = h.clone()
    h[:, :, 0] *= 2
    return h


# What is computed of a batch of one.
FUNCTIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "entries": lambda _, h: torch.where(h > 0, h.sigmoid(), 2 * h) + torch.arange(C),
    "entries of two ranks": lambda _, h: h * h[:, 0, 0] + h[0, 0],
    "an entry by a constant of more axes": lambda _, h: h.mean((0, 1)) * torch.ones(1, T, C),
    "views": lambda _, h: h.view(1, 2, 2, C).permute(0, 2, -1, 1).reshape(-1, 2 * C).view(1, -1),
    "windows": lambda _, h: h.view(1, 2, 2, C).transpose(1, 2).reshape(2, 2, C).softmax(1).view(1, T, C),
    "expanded": lambda _, h: h[0, 0].expand(1, T, -1) + h.unsqueeze(-1).expand(-1, -1, -1, 2).sum(3),
    "cut": lambda _, h: torch.cat([h[:, :1], h[:, -1:], h.flip(1)[:, 1:2], torch.ones(1, 1, C)], 1),
    "stacked": lambda _, h: torch.stack([h, h.roll(1, 1), torch.zeros(1, T, C)], -1),
    "split": lambda _, h: torch.cat([part * n for n, part in enumerate(h.chunk(3, -1))], -1),
    "unbound": lambda _, h: torch.stack([*h.unbind(1)][::-1], 1),
    "largest": lambda _, h: h.max(1)[0] + h.amax((1, 2)).unsqueeze(1) + h.topk(2, 1)[0].sum(1),
    "all": lambda _, h: h.sum().reshape(1, 1) + h.max() + h.mean(dim=None, keepdim=True)[0],
    "sums": lambda _, h: h.cumsum(1) + h.std(2, keepdim=True) + h.logsumexp(1, keepdim=True),
    "shares": lambda _, h: h.softmax(2) + h.log_softmax(-2) + F.glu(torch.cat([h, h], -1)),
    "products": lambda net, h: (h @ net.weight) @ (h.mT @ h @ net.weight).mT,
    "a product of batches": lambda _, h: torch.bmm(h, h.transpose(1, 2)),
    "einsum": lambda net, h: torch.einsum("btc,cs,bsd->btd", h, net.weight, h),
    "a layer norm": lambda net, h: net.norm(h),
    "group norm": lambda net, h: net.group(h.mT),
    "stored statistics": lambda net, h: net.batch(h.mT),
    "one convolution": lambda net, h: net.conv(h.mT),
    "a convolution of windows": lambda net, h: net.image(h.reshape(2, 1, 3, T)).reshape(1, -1),
    "a convolution without a batch": lambda net, h: net.conv(h[0].mT)[None],
    "a transposed convolution": lambda net, h: net.back(h.mT),
    "pools": lambda _, h: F.max_pool1d(h.mT, 2) + F.adaptive_avg_pool1d(h.mT, 1) + F.avg_pool1d(h.mT, 3, 1),
    "padding": lambda _, h: F.pad(h, (1, 2)) + F.pad(h.mT, (1, 2), mode="reflect").mT.mean((1, 2)),
    "padding of one row": lambda _, h: F.pad(h[0, 0], (2, 1))[None],
    "interpolation": lambda _, h: F.interpolate(h.mT, scale_factor=2.0, mode="nearest"),
    "attention": lambda net, h: net.attention(h, h, h, need_weights=False)[0],
    "attention of heads": lambda _, h: F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None])[0],
    "tokens": lambda net, h: net.words(h.argmax(2)) * h,
    "a recurrent layer": lambda net, h: net.lstm(h, (torch.ones(1, 1, 5), torch.zeros(1, 1, 5)))[0],
    "a recurrent layer of several sequences": lambda net, h: net.lstm(
        h.view(2, 2, C), (h[0, :2, :5][None], torch.ones(1, 2, 5))
    )[0].reshape(1, -1),
    "a last state": lambda net, h: net.gru(h.transpose(0, 1))[1].transpose(0, 1).flatten(1),
    "a constant of the kind": lambda _, h: h + torch.ones(1, T, C).type_as(h) + torch.zeros_like(h),
    "written": written,
    "written over a column": columns,
    "a loop": lambda net, h: torch.stack([net.norm(row).relu() for row in h]),
    "places": lambda _, h: h.gather(1, h.argsort(1))[:, :2] + torch.index_select(h, 1, torch.tensor([2, 0])),
    "triangles": lambda _, h: torch.tril(h @ h.mT).masked_fill(torch.eye(T).bool(), 1.0),
    "squeezed": lambda _, h: h[:, :1].squeeze(1) - h.squeeze(0).mean(0)[None],
}


def test_states_of_other_sequences_are_no_rows() -> None:
    """The operator would read beyond its memory."""

    def function(net: Any, h: Tensor) -> Tensor:
        state: Tensor = torch.ops.aten.lstm.input(
            *(h.view(2, 2, C), [h[0, :1, :5][None]] * 2, [*net.lstm.parameters()]),
            *(True, 1, 0.0, False, False, True),
        )[0]
        return state.reshape(1, -1)

    module, examples = Net(function), examples_of((T, C))
    program, _ = traced(module, examples, of_one=True)
    with silence(), pytest.raises(Untraceable, match="not those of its sequences"):
        batched(module, examples, program)(X)


def trained(module: nn.Module, outputs: Tensor) -> tuple[Tensor, ...]:
    """Return the gradient of a sum of the outputs with weights that are all different."""
    weights = torch.linspace(-1, 2, outputs.numel()).reshape(outputs.shape)
    parameters = [*module.parameters()]
    return torch.autograd.grad((weights * outputs).sum(), parameters, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_batch_has_the_outputs_and_gradients_of_its_examples(name: str) -> None:
    """The oracle is the module itself, which is given one example after the other."""
    torch.manual_seed(0)
    module = Net(FUNCTIONS[name])
    examples = examples_of((T, C))
    read = batched(module, examples, traced(module, examples, of_one=True)[0])
    with silence():
        wanted, found = torch.cat([module(X[i : i + 1]) for i in range(B)]), read(X)
    torch.testing.assert_close(found, wanted)
    for one, other in zip(trained(read, found), trained(module, wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def partition(h: Tensor, size: int) -> Tensor:
    """Windows [B·n, size, C] of a sequence [B, n·size, C]."""
    return h.view(len(h), -1, size, C).reshape(-1, size, C)


def joined(windows: Tensor, places: int) -> Tensor:
    """The way back, with a size of the batch that Python computes, as in the code of Swin transformers."""
    count = int(windows.shape[0] / (places / windows.shape[1]))
    return windows.reshape(count, -1, C)


class Windows(nn.Module):
    """Attention within windows, dropout, and random depth."""

    def __init__(self, dropout: float = 0.5, depth: float = 0.5) -> None:
        super().__init__()
        self.first, self.attention = nn.Linear(C, C), nn.MultiheadAttention(C, 2, batch_first=True)
        self.dropout, self.last, self.depth = nn.Dropout(dropout), nn.Linear(C, CLASSES), depth

    def forward(self, x: Tensor) -> Any:
        windows = partition(self.first(x), 2)
        h = self.dropout(joined(self.attention(windows, windows, windows, need_weights=False)[0], T))
        if self.training and self.depth:
            h = h * h.new_empty(len(h), 1, 1).bernoulli_(1 - self.depth) / (1 - self.depth)
        return self.last(x.flatten(2).mean(1) + h.mean(1))


def clipped_by_hand(module: nn.Module) -> dict[str, Tensor]:
    """Return Σ g_i/(‖g_i‖ + 0.01) of the gradients of examples, each by a backward pass of the module itself."""
    named = dict(module.named_parameters())
    sums = {name: torch.zeros_like(one) for name, one in named.items()}
    for i in range(B):
        loss = F.cross_entropy(module(X[i : i + 1]), Y[i : i + 1])
        gradients = torch.autograd.grad(loss, list(named.values()))
        norm = torch.cat([one.flatten() for one in gradients]).norm()
        for name, one in zip(named, gradients, strict=True):
            sums[name] += one / (norm + 0.01)
    return sums


def test_a_module_that_computes_the_size_of_the_batch_trains() -> None:
    """A step at rate 1, without noise, back in the module, is that of its own gradients of single examples."""
    torch.manual_seed(0)
    module = Windows(0.0, 0.0)
    (found,) = from_module(module, (T, C), loss="cross_entropy", bounds="clip").diagnostics
    assert found.code == "LIP130"
    made = lipcompile.private(module, (T, C), bounds="clip", clip_groups="flat")
    torch.testing.assert_close(made(X), module(X), rtol=1e-4, atol=1e-5)
    assert not verify(made.certificate).problems
    steps, before = clipped_by_hand(module), {n: one.detach().clone() for n, one in module.named_parameters()}
    made.guard_layers()
    made.gate.reset()
    made.criterion(made(X), Y).backward()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter -= parameter.grad
    lipcompile.load_trained(module, made, (T, C))
    for name, one in module.named_parameters():
        torch.testing.assert_close(one.detach(), before[name] - steps[name], rtol=1e-4, atol=1e-5)


def test_each_example_draws_its_own_numbers() -> None:
    """Of 400 equal examples a random depth of 1/2 leaves out 150 to 250: Hoeffding, 2·exp(-2·50²/400) = 7.5e-6."""
    torch.manual_seed(0)
    module = Windows(0.0)
    made = lipcompile.private(module, (T, C), bounds="clip")
    x = X[:1].expand(400, -1, -1)
    torch.testing.assert_close(made.eval()(x), module.eval()(x), rtol=1e-4, atol=1e-5)
    outputs = made.train()(x)
    left_out = (outputs - module.last(x.mean(1))).abs().amax(1) < 1e-5
    assert 150 < int(left_out.sum()) < 250
    torch.testing.assert_close(outputs[~left_out], outputs[~left_out][:1].expand(int((~left_out).sum()), -1))


def test_dropout_stays_dropout() -> None:
    """It is drawn in training alone, for each entry."""
    made = lipcompile.private(Windows(depth=0.0), (T, C), bounds="clip")
    x = X[:1].expand(8, -1, -1)
    assert len(made.eval()(x).unique(dim=0)) == 1
    assert len(made.train()(x).unique(dim=0)) == 8  # of 2²⁴ masks, two of which are the same once in 600,000 runs


@pytest.mark.slow
def test_statistics_of_the_batch_are_replaced() -> None:
    class Normed(Windows):
        def __init__(self) -> None:
            super().__init__(0.0, 0.0)
            self.norm = nn.BatchNorm1d(C)

        def forward(self, x: Tensor) -> Any:
            return super().forward(self.norm(x.mT).mT)

    with pytest.raises(InputError, match="LIP101"):
        lipcompile.private(Normed(), (T, C), bounds="clip")
    made = lipcompile.private(Normed(), (T, C), bounds="clip", batch_norm="group_norm")
    assert made.own_network is None
    torch.testing.assert_close(made(X)[:1], made(X[:1]))


class Mixing(nn.Module):
    """Subtracts the mean over the batch, or over a part of it, in one mode or both."""

    def __init__(self, *, always: bool, size: int) -> None:
        super().__init__()
        self.layer, self.always, self.size = nn.Linear(C, CLASSES), always, size

    def forward(self, x: Tensor) -> Any:
        h = self.layer(joined(partition(x, 2), T).mean(1))
        return h - h.mean(0) if (self.always or self.training) and len(h) >= self.size else h


@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize("size", [1, 10, 100])
def test_what_mixes_examples_is_refused(always: bool, size: int) -> None:
    with pytest.raises(InputError, match="LIP108"):
        lipcompile.private(Mixing(always=always, size=size), (T, C), bounds="clip")


def test_bounds_by_theorem_are_those_of_one_example() -> None:
    """A loop over the batch is the layer itself, and has its bound."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3, bias=False)

        def forward(self, x: Tensor) -> Any:
            return torch.stack([self.layer(row) for row in x])

    options: dict[str, Any] = {"input_norm": 1, "loss": "cross_entropy", "constraint": "spectral"}
    plain, loop = (from_module(one, (4,), **options).analysis for one in (nn.Linear(4, 3, bias=False), Loop()))
    assert plain is not None
    assert loop is not None
    assert loop.total == plain.total
