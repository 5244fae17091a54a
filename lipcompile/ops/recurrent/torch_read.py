"""How `torch.nn.RNN` becomes the RNN of ONNX.

Torch's exporter has no words for it, and takes it apart into steps that begin with a state of zeros for each
example. One operator says what it is, as the exporter does for LSTM and GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, update_wrapper
from typing import Any

import torch
from torch.fx import Node


def translations() -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """Return what translates recurrent layers that torch's exporter takes apart, by the operator."""
    aten = torch.ops.aten
    cells = {aten.rnn_tanh.input: "Tanh", aten.rnn_relu.input: "Relu"}
    return {operator: update_wrapper(partial(_rnn, activation), _rnn) for operator, activation in cells.items()}


def projects(node: Node) -> bool:
    """Whether a traced operation is an LSTM with projected states: torch.onnx drops the matrix that projects."""
    if str(node.target) != "aten.lstm.input":
        return False
    given: Any = node.args
    params, has_biases, layers, _, _, bidirectional = given[2:8]
    return bool(len(params) > layers * (2 if bidirectional else 1) * (4 if has_biases else 2))


def operators() -> Any:
    """Return what adds operators to the graph that is exported; lists and numbers become constants."""
    from onnxscript import opset18

    return opset18


def _rnn(
    activation: str,
    input: Any,  # noqa: A002  (names of torch's schema)
    hx: Any,
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, Any]:
    """Translate `rnn_tanh(input, hx, params, …) -> (output, h_n)`.

    Of each direction of each layer, `params` has the matrices of the input and the state, and their biases.
    """
    op = operators()
    directions, count = 2 if bidirectional else 1, 4 if has_biases else 2
    x, last = op.Transpose(input, perm=[1, 0, 2]) if batch_first else input, []
    for layer in range(num_layers):
        own = params[layer * directions * count :][: directions * count]
        biases = [op.Concat(*pair, axis=0) for pair in zip(own[2::count], own[3::count], strict=True)]
        made, state = op.RNN(
            x,
            _stacked(own[0::count]),
            _stacked(own[1::count]),
            _stacked(biases) if has_biases else None,
            None,
            op.Slice(hx, [layer * directions], [(layer + 1) * directions], [0]),
            direction="bidirectional" if bidirectional else "forward",
            hidden_size=hx.shape[2],
            activations=[activation] * directions,
        )
        # [steps, directions, B, width] → [steps, B, directions · width]
        x = op.Reshape(op.Transpose(made, perm=[0, 2, 1, 3]), [0, 0, -1])
        if dropout > 0 and train and layer < num_layers - 1:
            x, _ = op.Dropout(x, dropout, train)
        last.append(state)
    output = op.Transpose(x, perm=[1, 0, 2]) if batch_first else x
    return output, last[0] if len(last) == 1 else op.Concat(*last, axis=0)


def _stacked(tensors: Sequence[Any]) -> Any:
    """Return tensors of both directions, or of one, with an axis for the direction in front."""
    op = operators()
    rows = [op.Unsqueeze(tensor, [0]) for tensor in tensors]
    return rows[0] if len(rows) == 1 else op.Concat(*rows, axis=0)
