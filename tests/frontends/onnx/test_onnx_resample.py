"""Transposed convolutions, copies and interpolation from ONNX: computed as the reference does, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from lipcompile.frontends.onnx import model as onnx_model
from tests.frontends.onnx.onnx_models import Array, floats, ints, model, node, save
from tests.frontends.onnx.test_onnx_semantics import KEEP, emitted

FLAT = node("Flatten", "h", "y")
IMAGE = (4, 3, 5)
SCALES = np.array([1, 1, 2, 3], np.float32)
PARTS, HALVES = np.array([1, 1, 0.7, 2.5], np.float32), np.array([1, 1, 1, 0.5], np.float32)
Nodes = Sequence[onnx.NodeProto]
Weights = dict[str, Array]


def resized(mode: str, place: str, **attributes: object) -> Nodes:
    return [node("Resize", "x _ s", "h", mode=mode, coordinate_transformation_mode=place, **attributes), FLAT]


STATISTICS = {"g": floats(6, seed=2), "e": floats(6, seed=3), "m": floats(6), "v": np.abs(floats(6)) + 0.1}
CASES: dict[str, tuple[Nodes, tuple[int, ...], Weights]] = {
    "transposed": (
        [node("ConvTranspose", "x w b", "h", strides=[2, 1], pads=[1, 0, 0, 2], dilations=[1, 2]), FLAT],
        IMAGE,
        {"w": floats(4, 3, 3, 2), "b": floats(3)},
    ),
    "transposed, output padding": (
        [node("ConvTranspose", "x w", "h", strides=[3, 2], output_padding=[2, 1]), FLAT],
        IMAGE,
        {"w": floats(4, 3, 2, 2)},
    ),
    "transposed, groups": (
        [node("ConvTranspose", "x w b", "h", group=2, kernel_shape=[2, 2], auto_pad="VALID"), FLAT],
        IMAGE,
        {"w": floats(4, 3, 2, 2), "b": floats(6)},
    ),
    "transposed, a line": ([node("ConvTranspose", "x w", "h"), FLAT], (2, 5), {"w": floats(2, 3, 4)}),
    "transposed, groups and batch normalisation": (
        [node("ConvTranspose", "x w b", "c", group=2), node("BatchNormalization", "c g e m v", "h"), FLAT],
        IMAGE,
        {"w": floats(4, 3, 2, 2), "b": floats(6)} | STATISTICS,
    ),
    "reflected": ([node("Pad", "x p", "h", mode="reflect"), FLAT], IMAGE, {"p": ints(0, 0, 1, 2, 0, 0, 2, 0)}),
    "repeated": ([node("Pad", "x p", "h", mode="edge"), FLAT], IMAGE, {"p": ints(0, 0, 1, 5, 0, 0, 2, 0)}),
    "some entries": ([node("Gather", "x i", "h", axis=2), FLAT], IMAGE, {"i": ints(2, 0, -1)}),
    "a matrix of entries": (
        [node("Gather", "x i", "h", axis=1), FLAT],
        IMAGE,
        {"i": ints(2, 0, 0, 1).reshape(2, 2)},
    ),
    "expanded": ([node("Expand", "x s", "h"), FLAT], (2, 1), {"s": ints(1, 1, 3)}),
    "expanded by fewer axes": ([node("Expand", "x s", "h"), FLAT], (4, 1, 2), {"s": ints(3, 1)}),
    "expanded to itself": ([node("Expand", "x s", "h"), FLAT], (4, 2), {"s": ints(2)}),
    "depth to space": ([node("DepthToSpace", "x", "h", blocksize=2), FLAT], (8, 3, 2), {}),
    "depth to space, columns first": (
        [node("DepthToSpace", "x", "h", blocksize=2, mode="CRD"), FLAT],
        (8, 3, 2),
        {},
    ),
    "space to depth": ([node("SpaceToDepth", "x", "h", blocksize=2), FLAT], (3, 4, 6), {}),
    "nearest, as torch": (resized("nearest", "asymmetric", nearest_mode="floor"), IMAGE, {"s": SCALES}),
    "nearest, half pixels": (resized("nearest", "half_pixel"), IMAGE, {"s": SCALES}),
    "linear": (resized("linear", "half_pixel"), IMAGE, {"s": SCALES}),
    "linear, torch's half pixels": (resized("linear", "pytorch_half_pixel"), IMAGE, {"s": SCALES}),
    "linear, corners": (resized("linear", "align_corners"), IMAGE, {"s": SCALES}),
    "cubic": (resized("cubic", "half_pixel", cubic_coeff_a=-0.75), IMAGE, {"s": SCALES}),
    "cubic, corners": (resized("cubic", "align_corners"), IMAGE, {"s": SCALES}),
    "linear, a line": (resized("linear", "half_pixel"), (2, 4), {"s": SCALES[:3]}),
    "by sizes": (
        [node("Resize", "x _ _ n", "h", mode="linear"), FLAT],
        IMAGE,
        {"n": ints(3, 4, 6, 10)},
    ),
    "linear, by parts": (resized("linear", "half_pixel"), IMAGE, {"s": PARTS}),
    "linear, from the first entry": (resized("linear", "asymmetric"), IMAGE, {"s": SCALES}),
    "linear, corners halved": (resized("linear", "align_corners"), (2, 4), {"s": HALVES[1:]}),
    "linear, the channels as well": (resized("linear", "half_pixel"), (4, 2, 2), {"s": SCALES[[0, 2, 1, 1]]}),
    "cubic, by parts": (resized("cubic", "half_pixel"), IMAGE, {"s": PARTS}),
    "cubic, another curve": (resized("cubic", "half_pixel", cubic_coeff_a=-0.5), IMAGE, {"s": SCALES}),
    "cubic, within": (resized("cubic", "half_pixel", exclude_outside=1), IMAGE, {"s": SCALES}),
    "nearest, halved": (resized("nearest", "asymmetric", nearest_mode="floor"), IMAGE, {"s": HALVES}),
    "nearest, rounded up": (resized("nearest", "half_pixel", nearest_mode="ceil"), IMAGE, {"s": SCALES}),
    "by smaller sizes": ([node("Resize", "x _ _ n", "h", mode="linear"), FLAT], IMAGE, {"n": ints(3, 4, 2, 4)}),
    "by ones": (resized("cubic", "half_pixel"), IMAGE, {"s": np.ones(4, np.float32)}),
}


def agree(made: onnx.ModelProto, folder: Path, shape: tuple[int, ...]) -> None:
    """Assert that the emitted module and ONNX runtime agree on random examples."""
    module = emitted(onnx_model.load(save(made, folder), KEEP), folder)
    x = np.random.default_rng(1).standard_normal((3, *shape)).astype(np.float32)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    found = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(found, session.run(None, {"x": x})[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_an_operator_computes_what_the_runtime_computes(tmp_path: Path, name: str) -> None:
    nodes, shape, weights = CASES[name]
    batch = 3 if "n" in weights else "n"
    agree(model(nodes, (batch, *shape), weights), tmp_path, shape)


def test_the_old_upsampling_repeats_entries(tmp_path: Path) -> None:
    agree(model([node("Upsample", "x s", "h"), FLAT], ("n", *IMAGE), {"s": SCALES}, opset=9), tmp_path, IMAGE)


REFUSED: list[tuple[str, str, Nodes, Weights]] = [
    (
        "LIP110",
        "explicit pads",
        [node("ConvTranspose", "x w", "h", auto_pad="SAME_UPPER")],
        {"w": floats(4, 3, 2, 2)},
    ),
    (
        "LIP110",
        "explicit pads",
        [node("ConvTranspose", "x w", "h", output_shape=[5, 5])],
        {"w": floats(4, 3, 2, 2)},
    ),
    (
        "LIP102",
        "output_padding",
        [node("ConvTranspose", "x w", "h", output_padding=[1])],
        {"w": floats(4, 3, 2, 2)},
    ),
    (
        "LIP102",
        "below its stride",
        [node("ConvTranspose", "x w", "h", output_padding=[1, 0])],
        {"w": floats(4, 3, 2, 2)},
    ),
    ("LIP108", "batch", resized("linear", "half_pixel"), {"s": SCALES[[2, 1, 1, 1]]}),
    ("LIP102", "leaves nothing", resized("linear", "half_pixel"), {"s": HALVES[[0, 1, 3, 3]] ** 3}),
    ("LIP102", "scale", resized("linear", "half_pixel"), {"s": -SCALES}),
    ("LIP110", "different things", resized("linear", "align_corners"), {"s": PARTS}),
    ("LIP110", "tf_crop", resized("linear", "tf_crop_and_resize"), {"s": SCALES}),
    ("LIP108", "batch", [node("Expand", "x s", "h")], {"s": ints(2, 1, 1, 1)}),
    ("LIP108", "batch", [node("Expand", "x s", "h")], {"s": ints(1, 1, 1, 1, 1)}),
    ("LIP102", "does not expand", [node("Expand", "x s", "h")], {"s": ints(2, 3, 5)}),
    ("LIP102", "multiple", [node("DepthToSpace", "x", "h", blocksize=3)], {}),
    ("LIP102", "outside", [node("Gather", "x i", "h", axis=1)], {"i": ints(4, 0)}),
    ("LIP103", "reflection", [node("Pad", "x p", "h", mode="reflect")], {"p": ints(0, 0, 3, 0, 0, 0, 0, 0)}),
]


@pytest.mark.parametrize(("code", "word", "nodes", "weights"), REFUSED)
def test_what_differs_is_refused(tmp_path: Path, code: str, word: str, nodes: Nodes, weights: Weights) -> None:
    tail = [] if nodes[-1] is FLAT else [FLAT]
    loaded = onnx_model.load(save(model([*nodes, *tail], ("n", *IMAGE), weights), tmp_path), KEEP)
    found = [diagnostic for diagnostic in loaded.diagnostics if diagnostic.severity.name == "ERROR"]
    assert [diagnostic.code for diagnostic in found] == [code]
    assert word in f"{found[0].message} {found[0].help}"


def test_the_kept_norm_of_a_transposed_convolution_is_its_own(tmp_path: Path) -> None:
    """Stride 2, kernel 2: copies of the kernel stand side by side, so ‖T‖ = ‖K as a matrix [in, out·taps]‖."""
    kernel = floats(4, 3, 2, 2)
    nodes = [node("ConvTranspose", "x w", "h", strides=[2, 2]), FLAT]
    graph = onnx_model.load(save(model(nodes, ("n", *IMAGE), {"w": kernel}), tmp_path), KEEP).graph
    assert graph is not None
    bound = next(iter(graph.parameters.values())).constraint.bound
    exact = np.linalg.norm(kernel.reshape(4, -1).astype(np.float64), 2)
    assert exact <= float(bound) <= exact * 1.00001  # type: ignore[arg-type]
