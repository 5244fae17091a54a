"""Embedding and attention: values, bounds, edges."""

from __future__ import annotations

import pytest
import torch
from lipcompile_torch.certify.constraints import Frobenius, Spectral
from lipcompile_torch.nn.layers import Attention, Embedding
from torch import Tensor, nn


def attention(heads: int = 2, **options: object) -> Attention:
    torch.manual_seed(0)
    return Attention(6, heads, constraint=Spectral(2.0), **options).double()  # type: ignore[arg-type]


def reference(layer: Attention, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
    """Torch's own attention with the same weights."""
    theirs = nn.MultiheadAttention(
        6, layer.heads, bias=False, kdim=context.shape[2], vdim=context.shape[2], batch_first=True
    ).double()
    with torch.no_grad():
        if theirs.in_proj_weight is not None:
            theirs.in_proj_weight.copy_(torch.cat((layer.query, layer.key, layer.value)))
        else:
            theirs.q_proj_weight.copy_(layer.query)
            theirs.k_proj_weight.copy_(layer.key)
            theirs.v_proj_weight.copy_(layer.value)
        theirs.out_proj.weight.copy_(layer.output)
    return theirs(x, context, context, attn_mask=mask, need_weights=False)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_attention_is_that_of_torch(heads: int) -> None:
    layer, x = attention(heads), torch.randn(4, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x), reference(layer, x, x))
    causal = attention(heads, causal=True)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    torch.testing.assert_close(causal(x), reference(causal, x, x, later))


def test_attention_to_a_context_is_that_of_torch() -> None:
    layer = attention(context_features=3)
    x, context = (torch.randn(4, n, w, dtype=torch.float64) for n, w in ((5, 6), (7, 3)))
    torch.testing.assert_close(layer(x, context), reference(layer, x, context))


def test_a_causal_row_does_not_see_later_ones() -> None:
    layer, x = attention(causal=True), torch.randn(2, 5, 6, dtype=torch.float64)
    changed = x.clone()
    changed[:, 3:] += 1
    before, after = layer(x), layer(changed)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_weights_start_at_their_bounds_and_return_to_them() -> None:
    layer = Attention(
        6, 2, constraint={"query": Spectral(3.0), "key": Frobenius(1.0), "value": Spectral(), "output": Spectral()}
    )
    assert layer.certified_norms()["query"] == pytest.approx(3)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(5)
    layer.project_()
    norms = layer.certified_norms()
    assert norms["query"] <= 3
    assert float(layer.key.detach().norm()) <= 1
    assert norms["value"] <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_empty_batch_and_certain_weights_have_finite_gradients(dtype: torch.dtype) -> None:
    layer = attention(causal=True).to(dtype)
    for x in (torch.zeros(0, 4, 6), torch.zeros(2, 4, 6), 1e4 * torch.randn(2, 4, 6)):
        inputs = x.to(dtype).requires_grad_()
        layer.zero_grad()
        layer(inputs).sum().backward()
        gradients = [inputs.grad, *(parameter.grad for parameter in layer.parameters())]
        assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in gradients)
        assert layer(inputs).dtype == dtype


def test_gradients_of_attention_can_be_differentiated() -> None:
    layer = attention()
    x = torch.randn(1, 3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(layer, (x,))


def test_dropout_acts_in_training_only() -> None:
    layer, x = attention(dropout=0.5), torch.randn(2, 5, 6, dtype=torch.float64)
    plain = attention()
    assert not torch.allclose(layer(x), plain(x))
    torch.testing.assert_close(layer.eval()(x), plain(x))


def test_attention_refuses_other_shapes() -> None:
    layer = attention()
    for x in (torch.zeros(2, 6), torch.zeros(2, 3, 5)):
        with pytest.raises(ValueError, match="expected sequences"):
            layer(x.double())
    with pytest.raises(ValueError, match="needs the same sequence"):
        attention(causal=True)(torch.zeros(1, 2, 6).double(), torch.zeros(1, 2, 6).double())
    with pytest.raises(ValueError, match="4 heads for 6 features"):
        attention(4)


def test_an_embedding_selects_rows() -> None:
    layer = Embedding(5, 3, bound=2.0)
    tokens = torch.tensor([[0, 4], [3, 3]], dtype=torch.uint8)
    assert torch.equal(layer(tokens), layer.table[tokens.long()])
    assert layer(torch.zeros(0, 2, dtype=torch.int64)).shape == (0, 2, 3)
    assert float(layer.table.detach().norm(dim=1).max()) <= 2
    assert float(layer.table.detach().norm(dim=1).min()) > 1.99


def test_long_rows_alone_are_shortened() -> None:
    layer = Embedding(5, 3, bound=2.0)
    before = layer.table.detach().clone()
    with torch.no_grad():
        layer.table[1] *= 3
    layer.project_()
    norms = layer.table.detach().double().norm(dim=1)
    assert float(norms.max()) <= 2
    assert torch.equal(layer.table.detach()[[0, 2, 3, 4]], before[[0, 2, 3, 4]])
    assert layer.certified_norms()["table"] <= 2


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([0.0, 1.0]), "integer dtype"),
        (torch.tensor([True]), "integer dtype"),
        (torch.tensor([-1, 2]), "from -1 to 2"),
        (torch.tensor([5]), "rows 0 to 4"),
    ],
)
def test_an_embedding_refuses_what_selects_no_row(tokens: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Embedding(5, 3, bound=2.0)(tokens)


def test_the_gradient_of_a_table_is_dense_and_counts_every_use() -> None:
    layer = Embedding(4, 2, bound=1.0)
    layer(torch.tensor([[1, 1, 3]])).sum().backward()
    assert layer.table.grad is not None
    assert not layer.table.grad.is_sparse
    assert layer.table.grad.tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]
