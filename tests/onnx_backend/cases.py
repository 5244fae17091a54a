"""The test cases that ship with the `onnx` package: models, inputs and the outputs that the standard expects."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

Array = NDArray[Any]

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
FOLDERS = ("simple", "pytorch-operator", "pytorch-converted")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A model with one set of data: what goes into the inputs that are not stored, in order, and what comes out.

    An entry that is no tensor (a sequence, a missing optional) is None. family: node, light or a folder's name.
    """

    name: str
    family: str
    model: onnx.ModelProto
    inputs: tuple[Array | None, ...]
    outputs: tuple[Array | None, ...]


def node_cases() -> Iterator[Case]:
    """Yield the cases of single operators, and of their definitions as functions, which `onnx` makes by code."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the code that makes the data
        found = collect_testcases(None)
    for case in found:
        for inputs, outputs in case.data_sets or ():
            assert case.model is not None
            yield Case(case.name, "node", case.model, _arrays(inputs), _arrays(outputs))


def stored_cases() -> Iterator[Case]:
    """Yield the cases whose models and data are files; two sets of data of one model are two cases."""
    for family in FOLDERS:
        for folder in sorted((DATA / family).glob("test_*")):
            model = onnx.load(folder / "model.onnx")
            sets = sorted(folder.glob("test_data_set_*"))
            for index, data in enumerate(sets):
                name = folder.name if len(sets) == 1 else f"{folder.name}_{index}"
                inputs = _stored(data, "input", [value.type for value in _given(model)])
                outputs = _stored(data, "output", [value.type for value in model.graph.output])
                yield Case(name, family, model, inputs, outputs)


def light_cases() -> Iterator[Case]:
    """Yield the networks whose weights are constants, with the input that the package's runner makes for them."""
    for path in sorted((DATA / "light").glob("*.onnx")):
        model = onnx.load(path)
        (given,) = _given(model)
        shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
        entries = int(np.prod(shape))
        data = (np.arange(entries).reshape(shape) / entries).astype(np.float32)
        expected = path.with_name(f"{path.stem}_output_0.pb")
        yield Case(path.stem, "light", model, (data,), (_tensor(expected),))


def _given(model: onnx.ModelProto) -> Sequence[onnx.ValueInfoProto]:
    """Return the inputs that are not stored."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in stored]


def _stored(folder: Path, kind: str, types: Sequence[onnx.TypeProto]) -> tuple[Array | None, ...]:
    paths = [folder / f"{kind}_{index}.pb" for index in range(len(types))]
    return tuple(
        _tensor(path) if type_.HasField("tensor_type") else None for path, type_ in zip(paths, types, strict=True)
    )


def _tensor(path: Path) -> Array:
    return numpy_helper.to_array(onnx.load_tensor(str(path)))


def _arrays(values: Sequence[Any]) -> tuple[Array | None, ...]:
    return tuple(_array(value) for value in values)


def _array(value: Any) -> Array | None:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, np.ndarray) else np.asarray(value) if isinstance(value, np.generic) else None
