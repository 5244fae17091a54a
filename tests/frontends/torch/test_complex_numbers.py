"""Complex numbers, parameters and Fourier transforms: the import computes with pairs of real numbers.

Oracle: torch itself. Outputs are those of torch; the gradient of a batch is the sum of the gradients that torch
finds of each example alone, each scaled by the norm of all of its numbers, two for a complex one.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import lipcompile
from lipcompile import InputError
from lipcompile.frontends.torch.tracing import Example, traced
from lipcompile.frontends.torch.untraceable import Untraceable
from tests.frontends.torch.test_computed_parameters import GAMMA, examples, stepped
from tests.torch.clip_nets import whole

pytestmark = pytest.mark.slow
WIDTH = 6


class Net(nn.Module):
    """Examples [4, 6], a layer, what a function makes of it with a complex matrix and a vector, and a head."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.layer, self.head = function, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.c, self.p = nn.Parameter(torch.randn(4, 3, dtype=torch.cfloat)), nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("turns", torch.polar(torch.ones(4, 3), torch.randn(4, 3)))

    def forward(self, x: Tensor) -> Tensor:
        h = self.function(self, torch.tanh(self.layer(x)))
        return self.head(h.mean(1) + self.p)  # type: ignore[no-any-return]


def pairs(h: Tensor) -> Tensor:
    return torch.view_as_complex(h.reshape(*h.shape[:-1], 3, 2))


def rotary(net: Any, h: Tensor) -> Tensor:
    """As in the reference code of LLaMA."""
    return torch.view_as_real(pairs(h.float()) * net.turns[None]).flatten(2).type_as(h)


def spectral(net: Any, h: Tensor) -> Tensor:
    """As in FNO: a complex matrix for the lowest frequencies, zeros for the others."""
    low = torch.fft.rfft(h, dim=1)[:, :2, :4]
    out = torch.zeros(h.shape[0], 3, WIDTH, dtype=torch.cfloat)
    out[:, :2, :3] = torch.einsum("bki,io->bko", low, net.c)
    found: Tensor = torch.fft.irfft(out, n=4, dim=1)
    return found


def convolved(net: Any, h: Tensor) -> Tensor:
    """As in Hyena: a long convolution with a parameter, by transforms of twice the length."""
    spectrum = torch.fft.rfft(h, n=2 * WIDTH) * torch.fft.rfft(net.p, n=2 * WIDTH)
    found: Tensor = torch.fft.irfft(spectrum, n=2 * WIDTH)[..., :WIDTH] + h * net.p
    return found


def state_space(net: Any, h: Tensor) -> Tensor:
    """As in S4D: powers of complex numbers that are made of a parameter."""
    poles = -net.p[:3].exp() + 1j * net.p[3:]
    powers = (torch.exp(poles[:, None] * torch.arange(WIDTH)) - 1) / poles[:, None]
    return h * torch.einsum("n,nl->l", net.c[0], powers).real


def spectrogram(net: Any, h: Tensor) -> Tensor:
    found = torch.stft(h.flatten(1), 4, 2, window=torch.hann_window(4), return_complex=True)
    return torch.log(found.abs() + 0.1).reshape(len(h), -1, 3).repeat(1, 1, 2)


def phases(net: Any, h: Tensor) -> Tensor:
    """Angles of real numbers, as of the mean of a signal, of imaginary ones, and of 0."""
    on_axes = torch.complex(h.relu(), (-h).relu().roll(1, -1))
    found: Tensor = h + torch.fft.rfft(h).angle().sum(-1, keepdim=True) + on_axes.angle()
    return found


USES = {use.__name__: use for use in (rotary, spectral, convolved, state_space, spectrogram, phases)}


def by_torch(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the sum of the gradients of single examples, each scaled by its norm, complex ones as pairs."""
    parameters = dict(net.named_parameters())
    sums = {name: torch.zeros_like(real(one)).double() for name, one in parameters.items()}
    for one, label in zip(x, y, strict=True):
        loss = F.cross_entropy(net(one[None]), label[None])
        made = torch.autograd.grad(loss, [*parameters.values()], allow_unused=True)
        rows = {name: real(g).double() for name, g in zip(parameters, made, strict=True) if g is not None}
        for name, gradient in rows.items():
            sums[name] += gradient / (whole(rows) + GAMMA)
    return sums


def real(one: Tensor) -> Tensor:
    return torch.view_as_real(one.detach().resolve_conj()) if one.is_complex() else one.detach()


@pytest.mark.filterwarnings("ignore:the output does not depend on")
@pytest.mark.parametrize("name", USES)
def test_complex_networks_are_clipped_example_by_example(name: str) -> None:
    net, x, y = Net(USES[name]), examples(4, WIDTH), torch.arange(4) % 3
    module = lipcompile.private(net, x, bounds="clip")
    torch.testing.assert_close(module(x), net(x))
    wanted, twin = by_torch(net, x, y), deepcopy(net)
    stepped(module, x, y)
    lipcompile.load_trained(twin, module, x)
    for (key, before), after in zip(net.named_parameters(), twin.parameters(), strict=True):
        moved = (real(before) - real(after)).double()
        assert torch.allclose(moved, wanted[key], rtol=1e-4, atol=1e-5 * whole(wanted)), key


# Of h [B, 4, 6], z = its pairs [B, 4, 3] and the module.
FUNCTIONS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "angle": lambda net, h, z: z.angle() + torch.angle(z * 1j),
    "conjugates": lambda net, h, z: (z.conj() * z.mH.mT).real + torch.conj_physical(z).imag,
    "constants": lambda net, h, z: (z + 1 - 2j - h[..., :3]).abs() + (1j * z).real,
    "cut": lambda net, h, z: torch.cat([z[:, 1:], z.roll(1, 1)[:, :1]], 1).unbind(1)[0].imag,
    "in place": lambda net, h, z: _in_place(z).real,
    "kinds": lambda net, h, z: z.to(torch.cdouble).real.float() + h.to(torch.cfloat)[..., :3].real,
    "made": lambda net, h, z: torch.complex(h, h.cos()).imag + torch.polar(h.exp(), h).real,
    "matrices": lambda net, h, z: (z @ net.c.T + z @ z.mT).real.sum(1),
    "powers": lambda net, h, z: (z**2 + z.square() + (z + 3) ** -2 + torch.log(z + 3)).imag,
    "products": lambda net, h, z: (z * z * h[..., :3] * net.turns - 2 * z).real,
    "quotients": lambda net, h, z: (z / (z + 3) + z / 2 + z / h[..., :3].cosh() + 1 / (z + 2j)).imag,
    "split": lambda net, h, z: torch.stack(torch.split(z.chunk(2, 1)[0], [1, 2], 2)[1].unbind(-1), 1).imag,
    "squares of all": lambda net, h, z: (z.abs() ** 2).sum(-1) + z.mean(-1).real + torch.exp(z).sum(-1).imag,
    "tanh": lambda net, h, z: torch.tanh(z * 3).imag + (h[..., :3] + z / 4).tanh().real,
    "views": lambda net, h, z: torch.view_as_real(z.mT.reshape(-1, 12).view(-1, 4, 3)).flatten(2),
    "without gradients": lambda net, h, z: z.real + _without_gradients(net, z).imag,
    "where": lambda net, h, z: torch.where(h[..., :3] > 0, z, z.conj() * 0.5).imag,
    "fft": lambda net, h, z: torch.fft.fft(z).real + torch.fft.fft(h, n=3, norm="ortho").imag,
    "ifft": lambda net, h, z: torch.fft.ifft(z, n=5, dim=1, norm="forward").real,
    "rfft": lambda net, h, z: torch.fft.rfft(h, n=9).imag + torch.fft.rfft(h, n=8, norm="forward").real,
    "irfft": lambda net, h, z: torch.fft.irfft(z, n=7, norm="ortho") + torch.fft.irfft(z, n=7, dim=-1),
    "irfft of even length": lambda net, h, z: torch.fft.irfft(z) + torch.fft.irfft(z, n=4, norm="forward"),
    "irfft of a part": lambda net, h, z: torch.fft.irfft(z, n=3) + torch.fft.irfft(z, n=2).sum(-1, keepdim=True),
    "fft2": lambda net, h, z: torch.fft.ifft2(torch.fft.fft2(h) * net.turns[0, 0]).real,
    "rfft2": lambda net, h, z: torch.fft.irfft2(torch.fft.rfft2(h, norm="ortho"), s=(4, 6), norm="ortho"),
    "rfftn": lambda net, h, z: torch.fft.irfftn(torch.fft.rfftn(h, dim=(1, 2)), s=(4, 7), dim=(1, 2)),
    "shifted": lambda net, h, z: torch.fft.fftshift(torch.fft.fft(h), dim=-1).real,
    "stft": lambda net, h, z: _windows(h[:, 0]).imag,
}


def _without_gradients(net: Any, z: Tensor) -> Any:
    with torch.no_grad():
        found: Tensor = z * net.turns + 1j
    return found


def _windows(h: Tensor) -> Tensor:
    found: Tensor = torch.stft(h, 4, 1, 3, torch.hann_window(3), center=False, return_complex=True)
    return found


def _in_place(z: Tensor) -> Tensor:
    made = z.clone()
    made[:, 0] = 2j * z[:, 1]
    made[..., 1] *= z[..., 2]
    made += 1 - 1j
    return made


class Function(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_pairs_are_those_of_complex_numbers(name: str) -> None:
    net = Function(lambda net, h: FUNCTIONS[name](net, h, pairs(h)))
    program, _ = traced(net, [Example("", (4, WIDTH))])
    held = [value.dtype for node in program.graph.nodes if isinstance(value := node.meta.get("val"), Tensor)]
    assert not any(kind.is_complex for kind in held)
    x = examples(4, WIDTH)
    torch.testing.assert_close(program.module()(x), net(x), rtol=1e-5, atol=1e-5)


OF_BATCH: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "transform of the batch": lambda net, h: torch.fft.fft(h, dim=0).real,
    "a length of the batch": lambda net, h: torch.fft.ifft(torch.fft.fft(h, n=len(h) + WIDTH)).real[..., -WIDTH:],
    "a shift of the batch": lambda net, h: torch.fft.fftshift(torch.fft.fft(h)).real,
    "transform of the batch and more": lambda net, h: torch.fft.fftn(h).real,
    "a mean of all": lambda net, h: h * pairs(h).mean(0).abs().repeat(1, 2),
    "another example": lambda net, h: torch.view_as_real(pairs(h).flip(0) * net.turns).flatten(2),
    "products of examples": lambda net, h: torch.einsum("bti,cti->bt", pairs(h), pairs(h)).abs().unsqueeze(-1) + h,
}


@pytest.mark.parametrize("name", OF_BATCH)
def test_complex_functions_of_the_batch_are_refused(name: str) -> None:
    with pytest.raises(InputError) as refused:
        lipcompile.private(Net(OF_BATCH[name]), (4, WIDTH), bounds="clip")
    assert "LIP108" in {found.code for found in refused.value.diagnostics}


def _written(view: Callable[[Tensor], Tensor], again: bool) -> Callable[[Any, Tensor], Tensor]:
    def function(_: Any, h: Tensor) -> Tensor:
        z = pairs(h).clone()
        made = view(z)
        made[:, 0] += 1
        return h + (z if again else made).abs().sum()

    return function


@pytest.mark.parametrize("view", [torch.view_as_real, torch.conj])
def test_views_that_are_written_over_are_refused_where_they_are_read_again(
    view: Callable[[Tensor], Tensor],
) -> None:
    with pytest.raises(Untraceable, match="over a view of complex numbers") as refused:
        traced(Function(_written(view, again=True)), [Example("", (4, WIDTH))])
    assert refused.value.diagnostic.location is not None


def test_views_of_what_nothing_reads_again_may_be_written_over() -> None:
    net, x = Function(_written(torch.view_as_real, again=False)), examples(4, WIDTH)
    program, _ = traced(net, [Example("", (4, WIDTH))])
    torch.testing.assert_close(program.module()(x), net(x), rtol=1e-5, atol=1e-5)


def test_a_function_without_pairs_is_named_with_its_line() -> None:
    module = Net(lambda net, h: pairs(h).tan().real.repeat(1, 1, 2))
    (found,) = lipcompile.from_module(module, (4, WIDTH), loss="cross_entropy", bounds="clip").diagnostics
    assert (found.code, "aten.tan.default of complex numbers" in found.message) == ("LIP129", True)
    assert found.location is not None
    assert found.location.file.endswith("test_complex_numbers.py")
