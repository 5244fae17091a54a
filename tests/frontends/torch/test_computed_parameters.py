"""Parameters that reach the network through several functions, or at several sites: gates, relative positions.

Oracle: the module that is imported, by torch alone. The gradient of each example is found by itself, and clipped
as the paper says. A step by the sum must change each of its parameters as a step of the private module does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import lipcompile_verify
import pytest
import torch
from lipcompile_torch.deploy.robustness import certified_constants
from lipcompile_verify.files import check_module
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import lipcompile
from lipcompile import InputError
from lipcompile.analysis import requirements
from lipcompile.core.backend import instantiate
from lipcompile.frontends.onnx import tensors
from lipcompile.pipeline import from_module
from tests.nights import by_day
from tests.torch.clip_nets import clipped, whole

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:the output does not depend on")]
TOKENS, WIDTH, GAMMA = 4, 6, 0.01
COORDINATES = torch.linspace(-1, 2, TOKENS * WIDTH).reshape(1, 2, 2, WIDTH)
PLACES = torch.tensor([[0, 1, 2, 3], [4, 0, 1, 2], [4, 4, 0, 1], [4, 4, 4, 0]])


def stepped(module: Any, x: Tensor, y: Tensor) -> None:
    """Move the parameters of a private module by the sum of clipped gradients."""
    module.normaliser = 1.0
    found = clipped(module, x, y)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameter -= found[name]


def by_torch(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the sum of the gradients of single examples, each scaled to 1 by the automatic rule."""
    parameters = {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}
    sums = {name: torch.zeros_like(parameter, dtype=torch.double) for name, parameter in parameters.items()}
    for one, label in zip(x, y, strict=True):
        loss = F.cross_entropy(net(one[None]), label[None])
        made = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        rows = {name: g for name, g in zip(parameters, made, strict=True) if g is not None}
        for name, gradient in rows.items():
            sums[name] += gradient.double() / (whole(rows) + GAMMA)
    return sums


def held_to_torch(net: nn.Module, module: Any, x: Tensor) -> None:
    """Take a step with the private module, carry its weights back, and compare; leave each example out."""
    y = torch.arange(len(x)) % 3
    module.normaliser = 1.0
    all_of_them = clipped(module, x, y)
    for left_out in range(len(x)):
        rest = [index for index in range(len(x)) if index != left_out]
        fewer = clipped(module, x[rest], y[rest])
        assert whole({name: all_of_them[name].double() - fewer[name].double() for name in fewer}) <= 1 + 1e-5
    wanted, twin = by_torch(net, x, y), deepcopy(net)
    stepped(module, x, y)
    lipcompile.load_trained(twin, module, x)
    after = dict(twin.named_parameters())
    for name, parameter in net.named_parameters():
        moved = (parameter - after[name]).detach().double()
        expected = wanted.get(name, torch.zeros_like(moved))
        assert torch.allclose(moved, expected, rtol=1e-4, atol=1e-5 * whole(wanted)), name


def private(net: nn.Module, x: Tensor) -> Any:
    return lipcompile.private(net, x, bounds="clip")


def examples(*shape: int) -> Tensor:
    return torch.randn(4, *shape, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Examples [4, 6], a layer, what a function makes of it with a vector, a matrix and a number, and a head."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.function = function
        self.p, self.w = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)
        self.t = nn.Parameter(torch.randn(1) + 0.7)
        self.table = nn.Parameter(torch.randn(5, 2))
        self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self, torch.tanh(self.layer(x))).mean(1))  # type: ignore[no-any-return]


def gate(net: Any, h: Tensor) -> Tensor:
    """As in ConViT."""
    return (1.0 - torch.sigmoid(net.p)) * h + torch.sigmoid(net.p) * h.flip(1)


def attention(h: Tensor, bias: Tensor) -> Tensor:
    q = h.view(len(h), TOKENS, 2, 3).transpose(1, 2)
    scores = q @ q.mT + bias
    return (scores.softmax(-1) @ q).transpose(1, 2).reshape(h.shape)


def relative(net: Any, h: Tensor) -> Tensor:
    """As in T5: a table is looked up, and its rows are added to the scores of every layer."""
    bias = net.table[PLACES].permute(2, 0, 1).unsqueeze(0)
    h = h + attention(h, bias)
    return h + attention(h, bias * 2.0)


def highway(net: Any, h: Tensor) -> Tensor:
    """Where a mask that the example computes chooses between two functions of a parameter."""
    return h * torch.where(h > 0, net.p.exp(), net.p.tanh())


def normalised(net: Any, h: Tensor) -> Tensor:
    """Weight normalisation, and the norm of the weight as a gate."""
    norm = net.w.square().sum(1, keepdim=True).sqrt()
    return F.linear(h, net.w / norm) + norm[:, 0]  # type: ignore[no-any-return]


def sparse(net: Any, h: Tensor) -> Tensor:
    """A masked matrix, and its mirror."""
    mask = torch.ones(WIDTH, WIDTH).tril()
    return F.linear(h, net.w * mask) + F.linear(h, (net.w * mask).t())


def _coded(net: Any, rows: Tensor) -> Tensor:
    """As VQ-VAE: the nearest row of a matrix, to each row of all examples."""
    apart = rows.square().sum(1, keepdim=True) + net.w.square().sum(1) - 2 * rows @ net.w.t()
    hot = torch.zeros(rows.shape[0], WIDTH)
    hot.scatter_(1, apart.argmin(1).unsqueeze(1), 1)
    return hot @ net.w  # type: ignore[no-any-return]


def _supports(nodes: Tensor) -> Tensor:
    """As AGCRN: a graph that is learned beside that of each node alone."""
    return torch.stack([torch.eye(TOKENS), (nodes @ nodes.t()).relu().softmax(1)])


USES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "gate": gate,
    "relative positions": relative,
    "where": highway,
    "weight norm": normalised,
    "mask": sparse,
    "factorisation machine": lambda net, h: (h @ net.w).square() - h.square() @ net.w.square(),
    "temperature": lambda net, h: h * net.t + net.t,
    "quotient": lambda net, h: h / net.t.exp() + net.t.square() * h.square(),
    "number of no axes": lambda net, h: h * net.t.squeeze(0) - net.t.squeeze(0).cos(),
    "row and column": lambda net, h: h @ net.w + net.w[:, 0] * net.w[1],
    "slice and whole": lambda net, h: h @ net.w + F.pad(h @ net.w[:, :3], (0, 3)),
    "product": lambda net, h: h @ (net.w @ net.w.t()) + h @ net.w,
    "outer": lambda net, h: h @ (net.p[:, None] * net.p.sin()[None]) + net.p,
    "scale": lambda net, h: F.linear(h, net.w / net.w.abs().sum()) + F.linear(h, net.w),
    "vector from the right": lambda net, h: h * (h @ net.p)[..., None] + net.p,
    "softmax": lambda net, h: h * net.p.softmax(0) + net.p.log_softmax(0),
    "mean": lambda net, h: h * net.p.mean() + net.p,
    "halves": lambda net, h: torch.cat([h[..., :3] * net.p[:3], h[..., 3:] * net.p[3:].exp()], -1) + net.p,
    "chunks": lambda net, h: sum((part.repeat(3) for part in net.p.chunk(3)), h * net.p),
    "reshaped": lambda net, h: h * net.p.view(2, 3).t().reshape(-1) + net.p,
    "copies of each": lambda net, h: torch.cat([h, net.p.tanh().expand(len(h), 1, -1)], 1) * net.p,
    "codebook": lambda net, h: _coded(net, h.reshape(-1, WIDTH)).view(h.shape) + h * net.p,
    "rows of all": lambda net, h: (
        (h.reshape(-1, WIDTH) @ net.w.exp() * net.p + net.t.cos()).view(h.shape) + net.t + net.w[0]
    ),
    "capsules": lambda net, h: torch.matmul(net.w.view(3, 2, 6), h[:, :, None, :, None]).flatten(2),
    "vector from the left": lambda net, h: h * (net.p @ net.w.tanh()) + net.p * (net.w.sin() @ net.p),
    "roll": lambda net, h: h * net.p.roll(1) + net.p,
    "both sides": lambda net, h: net.w[:TOKENS, :TOKENS] @ h @ net.w,
    "one layer for two parameters": lambda net, h: h * (net.p * net.t) + net.p / (1 + net.t.square()),
    "limits": lambda net, h: torch.minimum(h, net.p) + torch.maximum(h, net.p.neg()),
    "negated": lambda net, h: torch.tanh(h - net.p) - net.p,
    "prototypes": lambda net, h: torch.exp(-(h[:, :, None] - net.w).square().sum(-1)) + net.p,
    "temperature of scores and bias": lambda net, h: (h @ h.mT * net.t).softmax(-1) @ h + net.t,
    "number of a spelling": lambda net, h: net.t * h * (1 + torch.erf(h / 2**0.5)) + net.t,
    "epsilon": lambda net, h: h * (h.square().mean(-1, keepdim=True) + net.t.square()).rsqrt() + net.t,
    "limits and bias": lambda net, h: h.clamp(-net.t.abs(), net.t.abs()) + net.t,
    "axis between": lambda net, h: (h.view(-1, TOKENS, 2, 3) * net.w[:TOKENS, None, :3].exp()).reshape(h.shape),
    "axis between, as it is": lambda net, h: (h[:, None].expand(-1, WIDTH, -1, -1) * net.w[:, None]).mean(1),
    "mask in two uses": lambda net, h: F.linear(F.linear(h, _masked(net.w), net.p).tanh(), _masked(net.w), net.p),
    "shifted gain": lambda net, h: F.rms_norm(h, (WIDTH,)) * (1.0 + net.p),
    "shifted gain of a norm": lambda net, h: F.layer_norm(h, (WIDTH,), 1 + net.p, net.w[0].sin()),
    "shifted gain of a norm without a shift": lambda net, h: F.layer_norm(h, (WIDTH,), 1 + net.p),
    "mask alone": lambda net, h: F.linear(h, net.w * torch.ones(WIDTH, WIDTH).tril()),
    "exponential alone": lambda net, h: h * net.p.exp().neg(),
    "sum of products": lambda net, h: torch.einsum("btd,ed->bte", h, net.w.softmax(1)),
    "sums of products": lambda net, h: torch.einsum("btd,df->btf", h, torch.einsum("ij,kj->ik", net.w, net.w)),
    "factors of a sum of products": lambda net, h: torch.einsum("btd,d->btd", h, net.p.exp()),
    "row for all tokens": lambda net, h: h + net.table[:3, :].reshape(-1)[None].expand(TOKENS, -1),
    "factor for all tokens": lambda net, h: h * net.table[0, :1].expand(TOKENS, WIDTH),
    "number for all": lambda net, h: h + net.table[1, 1].expand(len(h), TOKENS, WIDTH),
    "places": lambda net, h: h + (F.linear(COORDINATES, net.w, net.p).relu() @ net.w).reshape(TOKENS, WIDTH),
    "rows again": lambda net, h: h + net.w[torch.tensor([0, 2, 2, 0])],
    "rows of kinds": lambda net, h: h + F.embedding(torch.tensor([[0, 1, 1, 0]]).expand(len(h), -1), net.w),
    "supports of a graph": lambda net, h: torch.einsum("kij,bjd->bid", _supports(net.table[:TOKENS]), h),
    "padded": lambda net, h: h * F.pad(net.p[:4].exp(), (1, 1)) + F.pad(net.w[:2, 1:], (1, 0, 1, 1), value=0.5),
    "matrix beside its mirror": lambda net, h: (h[:, :2, None] + torch.stack([net.w, net.w.t()])).tanh().mean(2),
    "vector beside its negation": lambda net, h: (h[:, :2] + torch.stack([net.p, -net.p])).tanh(),
    "batch behind": lambda net, h: (h.transpose(0, 1) * net.p + net.p.sigmoid()[:, None].mT).transpose(0, 1),
}


class Session(nn.Module):
    """As NARM: scores of all items, of which the table is looked up at tokens, and then transformed."""

    def __init__(self, steps_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.steps_first = steps_first
        self.items, self.mixed = nn.Embedding(3, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.items(x.t()).transpose(0, 1) if self.steps_first else self.items(x)
        table = self.mixed(self.items(torch.arange(3)))
        return rows.tanh().mean(1) @ table.t()  # type: ignore[no-any-return]


@pytest.mark.parametrize("steps_first", [False, True])
def test_rows_of_a_table_that_is_computed_with(steps_first: bool) -> None:
    net, x = Session(steps_first), torch.tensor([[0, 1, 2, 2], [1, 1, 0, 2], [2, 0, 0, 0], [1, 2, 1, 0]])
    held_to_torch(net, private(net, x), x)


@pytest.mark.parametrize(
    "name",
    by_day(
        (
            *("axis between", "gate", "relative positions", "rows of kinds", "shifted gain", "sum of products"),
            *("padded", "supports of a graph"),
            *("matrix beside its mirror", "places", "temperature", "vector beside its negation", "weight norm"),
        ),
        USES,
    ),
)
def test_a_parameter_is_trained_through_all_its_functions(name: str) -> None:
    net, x = Net(USES[name]), examples(TOKENS, WIDTH)
    held_to_torch(net, private(net, x), x)


@pytest.mark.filterwarnings("ignore:.*is trained itself, without that computation")
@pytest.mark.parametrize("computed", [lambda p: p.cumsum(0), lambda p: p[None, None].expand(1, 2, -1).mean(1)[0]])
def test_what_is_computed_of_a_parameter_is_no_copy_of_it(computed: Any) -> None:
    """A row and a function of it, in one constant: the network computes both."""
    net, x = Net(lambda net, h: h[:, :2] + torch.stack([net.p, computed(net.p)])), examples(TOKENS, WIDTH)
    made = lipcompile.private(net, x, bounds="clip", verify_import=False)
    assert torch.allclose(made(x), net(x), atol=1e-6)


@pytest.mark.parametrize("kept", by_day(("", "0.weight"), ("", "0.weight", "0", "1", "1.weight")))
def test_statistics_that_are_fixed_leave_each_parameter_as_it_is(kept: str) -> None:
    """They were folded into the kernel, which was trained in the place of all, though it was frozen."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.ReLU(), nn.Flatten(), nn.Linear(9, 3)).eval()
    for _, parameter in net[1].named_parameters():
        nn.init.uniform_(parameter, 0.5, 2.0)
    for name in ("running_mean", "running_var"):
        nn.init.uniform_(net[1].get_buffer(name), 0.5, 2.0)
    for name, parameter in net.named_parameters():
        parameter.requires_grad = not (kept and name.startswith(kept))
    x = examples(2, 4)
    module = private(net, x)
    trained = sum(one.numel() for one in module.parameters() if one.requires_grad)
    assert trained == sum(one.numel() for one in net.parameters() if one.requires_grad)
    held_to_torch(net, module, x)


@pytest.mark.parametrize("norm", [F.layer_norm, lambda h, shape, p, q: F.rms_norm(h, shape, p) + q])
def test_gains_and_shifts_that_begin_as_nothing_are_trained(norm: Any) -> None:
    """Of a norm without a layer of its own they were left out, without a word."""
    net, x = Net(lambda net, h: norm(h, (WIDTH,), net.p, net.table[:3].flatten())), examples(TOKENS, WIDTH)
    nn.init.ones_(net.p)
    nn.init.zeros_(net.table)
    held_to_torch(net, private(net, x), x)


def told_of(net: nn.Module, x: Tensor, code: str, bounds: Any = "clip", **options: Any) -> list[str]:
    """Return what the import warns of, by this code."""
    found = from_module(net, x, loss="cross_entropy", bounds=bounds, **options)
    assert found.ok
    return [one.message for one in found.diagnostics if one.code == code]


@pytest.mark.parametrize(
    ("function", "start", "told"),
    [
        (lambda net, h: h + net.p.tanh(), 0.0, ["Tanh computes from `p`"]),
        (lambda net, h: h * net.p.abs(), 1.0, ["Abs computes from `p`"]),
        (lambda net, h: h * net.p.clamp(min=0.1), 1.0, ["Clip computes from `p`"]),
        (lambda net, h: h * (net.p * net.t), 1.0, ["Mul computes from `p`", "Mul computes from `t`"]),
        (lambda net, h: torch.addmm(net.p, h[:, 0], net.w, alpha=2)[:, None], 1.0, ["Mul computes from `w`"]),
        (lambda net, h: torch.addcmul(h, net.p, h), 1.0, []),
        (lambda net, h: h - (-net.p), 1.0, []),
    ],
)
def test_a_function_is_told_that_changes_nothing_at_the_start(
    function: Any, start: float, told: list[str]
) -> None:
    """Values were compared, and zeros and ones have the same tanh and the same absolute value."""
    net = Net(function)
    for parameter in (net.p, net.t):
        nn.init.constant_(parameter, start)
    messages = [f"the weight that {what} is trained itself, without that computation" for what in told]
    assert told_of(net, examples(TOKENS, WIDTH), "LIP122", "auto", input_norm=1) == messages
    by_clip = [message for message in messages if message.count("`w`")]  # alpha is a part of Gemm
    assert told_of(net, examples(TOKENS, WIDTH), "LIP122") == by_clip


class Started(nn.Module):
    """A recurrent layer whose initial state is learned, from zeros on."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layer = kind(WIDTH, WIDTH, batch_first=True, bias=False)  # torch has two biases that do the same
        self.head, self.state = nn.Linear(WIDTH, 3), nn.Parameter(torch.zeros(1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        state = self.state.expand(1, len(x), WIDTH).contiguous()
        return self.head(self.layer(x, state)[0][:, -1])  # type: ignore[no-any-return]


class Scored(nn.Module):
    """An attention to whose scores a learned bias is added, which begins as zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.MultiheadAttention(WIDTH, 2, batch_first=True), nn.Linear(WIDTH, 3)
        self.state = nn.Parameter(torch.zeros(TOKENS, TOKENS))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x, x, x, attn_mask=self.state)[0].mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("net", "name"),
    [
        (Net(lambda net, h: (1 + h.square()).pow(net.t) + net.t), "t"),
        (Net(lambda net, h: net.t.abs() ** h + net.t), "t"),
        (Scored(), "state"),
    ],
)
def test_what_no_rule_trains_is_told(net: nn.Module, name: str) -> None:
    """Of an exponent that was a bias as well, and of zeros, nothing was said."""
    assert f"`{name}`: read as a constant, and not trained" in told_of(net, examples(TOKENS, WIDTH), "LIP123")


def test_a_weight_is_trained_through_its_spectral_norm() -> None:
    """In evaluation mode the singular vectors stay, so that torch's gradients are those of W / uᵀWv."""
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, 5))
    net, x = nn.Sequential(layer, nn.Tanh(), nn.Linear(5, 3)).eval(), examples(WIDTH)
    held_to_torch(net, private(net, x).eval(), x)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU])
def test_a_state_that_a_recurrent_layer_begins_in_is_trained(kind: Any) -> None:
    net, x = Started(kind), examples(TOKENS, WIDTH)
    held_to_torch(net, private(net, x), x)


def _masked(weight: Tensor) -> Tensor:
    return weight * torch.ones_like(weight).tril()


FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.neg,
    torch.square,
    lambda p: 1 - p,
    lambda p: p / (1 + p.abs()),
    lambda p: p.softmax(-1),
    lambda p: p[..., torch.tensor([3, 0, 0, 5, 1, 2])],
    lambda p: torch.cat([p[..., 2:], p[..., :2]], -1),
    lambda p: p * p.mean(-1, keepdim=True),
    lambda p: torch.where(p > 0, p, 0.1 * p),
)
SITES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda h, f: h + f,
    lambda h, f: h * f,
    lambda h, f: f - h.square(),
    lambda h, f: h + (h @ f)[..., None],
    lambda h, f: h / (1 + f.square()),
    lambda h, f: h + F.linear(h, f[:, None] * f),
    lambda h, f: torch.where(h > 0, h, f),
    lambda h, f: h - f,
)


def drawn(seed: int) -> Callable[[Any, Tensor], Tensor]:
    """Two to four random chains of functions of one vector, each at a random site."""
    draw = random.Random(seed)
    uses = [(draw.choices(FUNCTIONS, k=draw.randint(1, 3)), draw.choice(SITES)) for _ in range(draw.randint(2, 4))]

    def function(net: Any, h: Tensor) -> Tensor:
        for chain, site in uses:
            made = net.p
            for step in chain:
                made = step(made)
            h = torch.tanh(site(h, made))
        return h

    return function


@pytest.mark.parametrize("seed", by_day((0, 1, 2), range(30)))
def test_random_functions_of_a_parameter(seed: int) -> None:
    net, x = Net(drawn(seed), seed), examples(TOKENS, WIDTH)
    held_to_torch(net, private(net, x), x)


def test_a_use_that_is_dropped_is_noticed(tmp_path: Path) -> None:
    """The attack above has teeth: without the gradient of the complement it fails."""
    net, x = Net(gate), examples(TOKENS, WIDTH)
    path = lipcompile.compile(net, tmp_path / "net.py", example=x, loss="cross_entropy", bounds="clip")
    text = path.read_text(encoding="utf-8")
    first, *others = [line for line in text.splitlines() if "torch.sigmoid(" in line]
    assert others
    held_to_torch(net, instantiate(path, text), x)
    mutant = text.replace(first, f"{first}.detach()", 1)
    with pytest.raises(AssertionError, match=r"^p\b"):
        held_to_torch(net, instantiate(path, mutant), x)


def test_the_second_program_agrees(tmp_path: Path) -> None:
    """Certificates have the parameter itself, and its functions as ops."""
    for function in (gate, relative):
        net, x = Net(function), examples(TOKENS, WIDTH)
        path = lipcompile.compile(net, tmp_path / "net.py", example=x, loss="cross_entropy", bounds="clip")
        module: Any = instantiate(path, path.read_text(encoding="utf-8"))
        assert lipcompile_verify.verify(module.certificate).ok
        named = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
        assert named == {*module.bounds}


def test_theorems_still_refuse() -> None:
    with pytest.raises(InputError, match="LIP308"):
        lipcompile.private(Net(gate), examples(TOKENS, WIDTH), bounds="theorem")


@pytest.mark.parametrize(
    "function",
    [
        lambda net, h: F.conv1d(h, net.w[:TOKENS, :TOKENS, None]) + F.pad(net.w[0], (0, 0)),
        lambda net, h: h + net.p.cumsum(0) + net.p,
        lambda net, h: torch.where(h > 0, h + net.p, net.p.cumsum(0)),
    ],
)
def test_what_has_no_form_is_computed_alone(function: Any) -> None:
    with pytest.warns(UserWarning, match="one example at a time"):
        private(Net(function), examples(TOKENS, WIDTH))


def test_a_large_parameter_is_not_copied_for_each_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MOST_ENTRIES", WIDTH - 1)
    with pytest.warns(UserWarning, match="is used here in another way"):
        private(Net(gate), examples(TOKENS, WIDTH))


@pytest.mark.parametrize(
    "function",
    [
        lambda net, h: h + gate(net, h).mean(0, keepdim=True),
        lambda net, h: h * (net.p.sigmoid() * h.transpose(0, 1).mean(1)).mean() * net.p,
    ],
)
def test_examples_do_not_mix_through_it(function: Any) -> None:
    with pytest.raises(InputError, match=r"LIP10[128]"):
        private(Net(function), examples(TOKENS, WIDTH))


class Siamese(nn.Module):
    """A table and layers that read parts of an example of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layer, self.shift = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Parameter(torch.randn(4))
        self.norm, self.slope, self.head = nn.LayerNorm(4), nn.PReLU(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        parts = (x[:, :3], x[:, 3:])
        made = [self.slope(self.norm(self.layer(self.words(part)) + self.shift)).mean(1) for part in parts]
        return self.head(made[0] * made[1])  # type: ignore[no-any-return]


def test_layers_may_read_parts_of_different_lengths(tmp_path: Path) -> None:
    net, x = Siamese(), torch.tensor([[3, 5, 2, 0, 1], [4, 1, 7, 2, 2], [8, 0, 0, 6, 1]])
    path = lipcompile.compile(net, tmp_path / "net.py", example=x, loss="cross_entropy", bounds="clip")
    module: Any = instantiate(path, path.read_text(encoding="utf-8"))
    assert lipcompile_verify.verify(module.certificate).ok
    held_to_torch(net, module, x)
    with pytest.raises(InputError, match="LIP308"):
        lipcompile.private(net, x, bounds="theorem")


class Crops(nn.Module):
    """Convolutions of a signal, and of a part of it, as the head of a detector has levels."""

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.up, self.head = nn.Conv1d(2, 3, 3), nn.ConvTranspose1d(3, 3, 4, 2, 1), nn.Linear(3, 3)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        part = F.conv1d(x[:, :, :5], self.layer.weight, self.layer.bias, self.stride)
        return self.head(self.up(self.layer(x).tanh()).mean(2) + self.up(part).mean(2))  # type: ignore[no-any-return]


def test_convolutions_share_weights_at_several_sizes(tmp_path: Path) -> None:
    """The norm of a kernel is that of its map at one size: no radius may come from it."""
    net, x = Crops(), examples(2, 8)
    path = lipcompile.compile(net, tmp_path / "net.py", example=x, loss="cross_entropy", bounds="clip")
    module: Any = instantiate(path, path.read_text(encoding="utf-8"))
    assert lipcompile_verify.verify(module.certificate).ok
    assert check_module(path, module.certificate) == []
    text = path.read_text(encoding="utf-8")  # the layer is built for the first of its sizes, 5
    path.write_text(text.replace("input_size=(5,), reads=3, taps=3", "input_size=(8,), reads=3, taps=3"))
    (refused,) = check_module(path, module.certificate)
    assert "input_size=(8,)" in refused.reason
    with pytest.raises(ValueError, match="no finite Lipschitz constant"):
        certified_constants(module)
    held_to_torch(net, module, x)
    with pytest.raises(InputError, match="LIP308"):
        lipcompile.private(net, x, bounds="theorem", input_norm=1)


def test_convolutions_of_other_strides_share_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second program says so where the compiler does not."""
    options: dict[str, Any] = {"example": (2, 8), "loss": "cross_entropy", "bounds": "clip"}
    with pytest.raises(InputError, match="LIP308"):
        lipcompile.compile(Crops(2), tmp_path / "net.py", **options)
    monkeypatch.setattr(requirements, "_is_one_map", lambda *_: True)
    path = lipcompile.compile(Crops(2), tmp_path / "net.py", verify_import=False, **options)
    module: Any = instantiate(path, path.read_text(encoding="utf-8"))
    verdict = lipcompile_verify.verify(module.certificate)
    assert any("different linear map" in problem.reason for problem in verdict.problems)


def test_a_mask_leaves_the_bias_trained() -> None:
    """A constant that is chosen where a mask of the example says so was not trained, without a word."""

    def masked(net: Any, h: Tensor) -> Tensor:
        return torch.where(h > 0, net.p, torch.zeros(())) + h

    net, x = Net(masked), examples(TOKENS, WIDTH)
    module = private(net, x)
    held_to_torch(net, module, x)
    assert sum(p.numel() for p in module.parameters() if p.requires_grad) == WIDTH + sum(
        p.numel() for p in (*net.layer.parameters(), *net.head.parameters())
    )


def test_what_is_held_is_told_by_theorems_and_trained_by_auto() -> None:
    def told(bounds: Any) -> list[str]:
        options = {"loss": "cross_entropy", "bounds": bounds, "input_norm": 1}
        found = from_module(Net(USES["limits"]), examples(TOKENS, WIDTH), **options)
        return [d.message for d in found.diagnostics if d.code == "LIP123" and "`p`:" in d.message]

    assert len(told("theorem")) == 1
    assert told("clip") == told("auto") == []


def test_numbers_are_constants_of_theorems_and_trained_by_clips() -> None:
    def told(bounds: Any) -> list[str]:
        found = from_module(Net(USES["temperature"]), examples(TOKENS, WIDTH), loss="cross_entropy", bounds=bounds)
        return [d.message for d in found.diagnostics if d.code == "LIP123" and "`t`: one number" in d.message]

    assert len(told("theorem")) == 1
    assert told("clip") == []


class Statistics(nn.Module):
    """A batch normalisation in evaluation mode that no layer before it takes in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.head = nn.BatchNorm1d(TOKENS), nn.Linear(TOKENS * WIDTH, 3)
        for tensor in (self.norm.weight, self.norm.bias, self.norm.get_buffer("running_mean")):
            nn.init.normal_(tensor)
        nn.init.uniform_(self.norm.get_buffer("running_var"), 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.norm(x)).flatten(1))  # type: ignore[no-any-return]


def test_factors_of_fixed_statistics_are_trained() -> None:
    """They were constants, without a word."""
    net, x = Statistics().eval(), examples(TOKENS, WIDTH)
    held_to_torch(net, private(net, x), x)


class Filled(nn.Module):
    """A learned number in the place of what is missing, and a gate and its complement."""

    def __init__(self) -> None:
        super().__init__()
        self.missing, self.gate = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.where(torch.isnan(x), self.missing.expand_as(x), x)
        share = torch.sigmoid(self.gate)
        found: Tensor = self.last(share * self.first(x) + (1 - share) * x)
        return found


def test_missing_inputs_reach_no_parameter(tmp_path: Path) -> None:
    """Zeros of an example were its first input times 0, so NaN where that was missing, and it was left out."""
    net, x = Filled(), torch.randn(6, 4)
    x[range(4), range(4)] = torch.nan
    module = lipcompile.private(net, x, bounds="clip")
    torch.testing.assert_close(module(x), net(x))
    held_to_torch(net, module, x)
    path = lipcompile.compile(net, tmp_path / "net.py", example=x, loss="cross_entropy", bounds="clip")
    assert lipcompile_verify.verify(instantiate(path, path.read_text(encoding="utf-8")).certificate).ok


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*constant folding")
def test_files_are_read_in_the_same_way(tmp_path: Path) -> None:
    net, x, file = Net(gate).eval(), examples(TOKENS, WIDTH), tmp_path / "net.onnx"
    open_batch: dict[str, Any] = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    torch.onnx.export(net, (x,), str(file), dynamo=False, **open_batch)
    path = lipcompile.compile(str(file), tmp_path / "net.py", loss="cross_entropy", bounds="clip")
    module: Any = instantiate(path, path.read_text(encoding="utf-8"))
    torch.testing.assert_close(module(x), net(x), rtol=1e-4, atol=1e-5)
    assert "p.bias" in module.bounds
