"""Files made to do harm: every one ends in a diagnostic that says why, within bounded time and memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from lipcompile.__main__ import run
from lipcompile.diagnostics import Diagnostic, InputError
from lipcompile.frontends.options import ModelOptions
from lipcompile.limits import Limits, parse_limits
from lipcompile.pipeline import check
from tests.frontends.onnx.onnx_models import floats, ints, model, node, save
from tests.nights import by_day

HEAD = "model m {\n    input x: tensor[4], norm <= 1\n"
SMALL = {"w": floats(6, 6)}


def told(path: Path | str, options: ModelOptions | None = None) -> list[Diagnostic]:
    """What is said of a model, whether it can be read or not."""
    try:
        return list(check(str(path), options).diagnostics)
    except InputError as error:
        return list(error.diagnostics)


def only(path: Path | str, options: ModelOptions | None = None) -> Diagnostic:
    errors = [found for found in told(path, options) if found.severity == "error"]
    assert len(errors) == 1, errors
    return errors[0]


def lip(folder: Path, text: str) -> Path:
    path = folder / "model.lip"
    path.write_text(text)
    return path


# Limits of .lip files


EXPONENTIAL = "".join(f"block b{i}() {{ b{i + 1}() b{i + 1}() }}\n" for i in range(40)) + "block b40() { relu }\n"
SQUARED = "".join(f"block b{i}(n) {{ b{i + 1}(n * n) }}\n" for i in range(60)) + "block b60(n) { dense(n) }\n"
SYMBOLIC = "model m { param n: real\n input x: tensor[4], norm <= 1\n b0(n) }"


@pytest.mark.parametrize(
    ("text", "option"),
    [
        (HEAD + "repeat 1000000000 { relu } }", "nodes"),
        (HEAD + "repeat 100000 { repeat 100000 { frozen {} } } }", "nodes"),
        (HEAD + "repeat 100000 { repeat 100000 { split() } } }", "nodes"),
        (EXPONENTIAL + HEAD + "b0() }", "nodes"),
        ("model m { input x: tensor[1000000, 4], norm <= 1\n gru(3) }", "nodes"),
        (HEAD + "residual(add) { " * 80 + "relu" + " }" * 80 + " }", "depth"),
        (HEAD + "residual(add) { " * 5000 + "relu" + " }" * 5000 + " }", "depth"),
        (HEAD + f"dense({'-' * 3000}2) }}", "depth"),
        (HEAD + f"dense({'1+' * 3000}2) }}", "depth"),
        (HEAD + "dense(2, bias=1e999999999) }", "digits"),
        (HEAD + "dense(2, bias=1e-999999999) }", "digits"),
        (HEAD + f"dense({'9' * 5000}) }}", "digits"),
        (HEAD + "dense(2, bias=1e300 * 1e300) }", "digits"),
        (SQUARED + HEAD + "b0(7) }", "digits"),
        (SQUARED + SYMBOLIC, "digits"),
        (HEAD + "# " + "x" * 2**18 + "\n}", "text-size"),
    ],
)
def test_what_exceeds_a_limit_names_the_option_that_raises_it(text: str, option: str, tmp_path: Path) -> None:
    found = only(lip(tmp_path, text))
    assert found.code == "LIP018"
    assert f"--limit {option}=" in found.help
    assert found.location is not None
    assert found.location.file.endswith("model.lip")


def test_a_limit_says_where_it_was_exceeded(tmp_path: Path) -> None:
    found = only(lip(tmp_path, HEAD + "    relu\n    repeat 100000 { relu }\n}"))
    assert found.location is not None
    assert (found.location.line, found.location.column) == (4, 5)


@pytest.mark.parametrize(
    "layer",
    [
        "conv1d(4, kernel=100000)",
        "max_pool(99999, stride=1)",
        "adaptive_avg_pool(9000000)",
        "upsample(100, mode=bicubic)",
        "pad(400000, mode=reflect)",
        "conv1d(4, kernel=3, padding=3, padding_mode=circular)",
    ],
)
def test_axes_that_are_too_long_to_count_are_refused_at_their_layer(layer: str, tmp_path: Path) -> None:
    found = only(lip(tmp_path, f"model m {{\n    input x: tensor[2, 500000], norm <= 1\n    {layer}\n}}"))
    assert found.code == "LIP018"
    assert "--limit counts=" in found.help
    assert found.location is not None
    assert found.location.line == 3


def test_long_axes_that_need_no_counting_are_accepted(tmp_path: Path) -> None:
    text = "model m { input x: tensor[3, 100000000], norm <= 1\n dense(1000, bias=0.5) relu dense(2) flatten }"
    assert check(str(lip(tmp_path, text))).ok


def test_parentheses_alone_nest_nothing(tmp_path: Path) -> None:
    assert check(str(lip(tmp_path, HEAD + f"dense({'(' * 3000}2{')' * 3000}) }}"))).ok


def test_limits_can_be_raised_and_lowered(tmp_path: Path) -> None:
    path = lip(tmp_path, HEAD + "repeat 30 { relu } dense(2) }")
    assert only(path, ModelOptions(limits=Limits(nodes=20))).code == "LIP018"
    assert check(str(path), ModelOptions(limits=Limits(nodes=40))).ok
    deep = lip(tmp_path, HEAD + "residual(add) { " * 150 + "relu" + " }" * 150 + " dense(2) }")
    assert check(str(deep), ModelOptions(limits=Limits(depth=500))).ok


def test_the_option_for_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(lip(tmp_path, HEAD + "relu relu dense(2) }"))
    assert run(["check", path, "--limit", "nodes=2"]) == 2
    assert "--limit nodes=8" in capsys.readouterr().err
    assert run(["check", path, "--limit", "nodes=3", "--limit", "depth=1", "--limit", "file-size=1K"]) == 0
    assert run(["check", path, "--limit", "notes=3"]) == 2
    assert "file-size" in capsys.readouterr().err


def test_sizes_of_limits() -> None:
    assert parse_limits(["file-size=4G", "nodes=7", "text-size=2MB"]) == Limits(
        file_size=4 * 2**30, nodes=7, text_size=2 * 2**20
    )
    for wrong in ("nodes", "nodes=", "nodes=-1", "nodes=1e5", "nodes=5x", "=5", "nodes=" + "9" * 30):
        with pytest.raises(InputError, match="is no limit"):
            parse_limits([wrong])


@pytest.mark.parametrize("option", ["--input-norm", "--bias-bound", "--constraint", "--loss", "--set"])
def test_long_numbers_in_options(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {"--constraint": "spectral:", "--loss": "hinge:margin=", "--set": "n="}.get(option, "")
    path = str(lip(tmp_path, "model m { param n: real\n input x: tensor[4], norm <= 1\n dense(1) }"))
    assert run(["check", path, option, f"{before}1e999999999"]) == 2
    assert "LIP018" in capsys.readouterr().err


def test_a_loss_of_many_brackets_takes_no_time(tmp_path: Path) -> None:
    path = str(lip(tmp_path, HEAD + "dense(2) }"))
    for text in ("(" * 3000, "((" * 1000 + "1" + "))" * 1000, "(,)" * 100_000, ",(" * 100_000):
        assert run(["check", path, "--loss", f"cross_entropy:class_weights={text}"]) == 2


# Files that are no files


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("model.lip", "model.onnx"):
        os.mkfifo(tmp_path / name)
        found = only(tmp_path / name)
        assert (found.code, "a pipe, not a file" in found.message) == ("LIP001", True)


def test_folders_and_devices(tmp_path: Path) -> None:
    for suffix in (".lip", ".onnx"):
        (tmp_path / f"folder{suffix}").mkdir()
        (tmp_path / f"zero{suffix}").symlink_to("/dev/zero")
        assert "a folder, not a file" in only(tmp_path / f"folder{suffix}").message
        assert "a device, not a file" in only(tmp_path / f"zero{suffix}").message
    assert only(tmp_path / "none\0.lip").code == "LIP001"


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    for name, size in (("model.lip", 2**18 + 1), ("model.onnx", 2**31 + 1)):
        with (tmp_path / name).open("wb") as stream:
            stream.truncate(size)
        assert only(tmp_path / name).code == "LIP018"


def test_imports_stay_inside(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / "blocks").mkdir(parents=True)
    (tmp_path / "outside.lip").write_text("block b() { relu }")
    (folder / "link.lip").symlink_to(tmp_path / "outside.lip")
    (folder / "blocks" / "inside.lip").write_text("block b() { relu }")
    (folder / "near.lip").symlink_to(folder / "blocks" / "inside.lip")
    (folder / "circle.lip").symlink_to(folder / "circle.lip")
    os.mkfifo(folder / "pipe.lip")
    (folder / "latin.lip").write_bytes(b"block b() { relu } # \xe9")
    expected = {
        "link.lip": "LIP015",
        "../outside.lip": "LIP015",
        str(tmp_path / "outside.lip"): "LIP015",
        "circle.lip": "LIP015",
        "pipe.lip": "LIP015",
        "blocks": "LIP015",
        "latin.lip": "LIP010",
    }
    for target, code in expected.items():
        assert only(lip(folder, f'import "{target}"\n{HEAD} b() }}')).code == code, target
    assert check(str(lip(folder, f'import "near.lip"\n{HEAD} b() dense(2) }}'))).ok


# What is computed by several nodes, of which any may be too large: places of entries, one hot.
PLACES = {
    "gathered": [node("GatherElements", "h p", "y", axis=1)],
    "scattered": [node("ScatterElements", "h p u", "y", axis=1, reduction="add")],
    "in order": [node("TopK", "h k", "m t", axis=1), node("GatherElements", "h t", "y", axis=1)],
    "rows": [node("Gather", "r p", "g"), node("Flatten", "g", "y")],
}


@pytest.mark.parametrize("name", PLACES)
def test_whatever_node_is_too_large_is_named(name: str, tmp_path: Path) -> None:
    head = [node("Gemm", "x w", "h", transB=1), node("ArgMax", "h", "a", axis=1), node("Expand", "a s", "p")]
    weights = {"w": floats(20, 6), "s": ints(1, 4), "k": ints(3), "u": floats(1, 4), "r": floats(20, 6)}
    path = save(model([*head, *PLACES[name]], ("batch", 6), weights), tmp_path)
    clipped = ModelOptions(bounds="clip", input_norm=Fraction(1))
    assert not [found for found in told(path, clipped) if found.severity == "error"]
    for entries in range(120, 600, 20):
        options = replace(clipped, limits=parse_limits([f"entries={entries}"]))
        codes = {found.code for found in told(path, options) if found.severity == "error"}
        assert not codes or "LIP018" in codes


def test_imports_count_together(tmp_path: Path) -> None:
    for index in range(3):
        (tmp_path / f"b{index}.lip").write_text(f"block b{index}() {{ relu }} # " + "x" * 100_000)
    found = told(lip(tmp_path, "".join(f'import "b{i}.lip"\n' for i in range(3)) + HEAD + "relu }"))
    assert [entry.code for entry in found] == ["LIP018"]


# Data beside an ONNX file


def outside(folder: Path, **entries: str) -> Path:
    """A model whose weight is kept elsewhere."""
    made = model([node("Gemm", "x w", "y")], ("n", 6), SMALL)
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return save(made, folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with data, beside some that are none of its business."""
    inside = tmp_path / "models"
    inside.mkdir()
    (tmp_path / "secret.bin").write_bytes(SMALL["w"].tobytes())
    (inside / "weights.bin").write_bytes(SMALL["w"].tobytes())
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    (inside / "near.bin").symlink_to(inside / "weights.bin")
    (inside / "zero.bin").symlink_to("/dev/zero")
    (inside / "circle.bin").symlink_to(inside / "circle.bin")
    os.mkfifo(inside / "pipe.bin")
    return inside


@pytest.mark.parametrize(
    ("location", "word"),
    [
        ("../secret.bin", "outside of the model's folder"),
        ("link.bin", "outside of the model's folder"),
        ("/dev/zero", "outside of the model's folder"),
        ("zero.bin", "outside of the model's folder"),
        ("nothing/../../secret.bin", "outside of the model's folder"),
        ("/etc/passwd", "outside of the model's folder"),
        (".", "outside of the model's folder"),
        ("", "outside of the model's folder"),
        ("pipe.bin", "a pipe, not a file"),
        ("circle.bin", "`circle.bin`"),  # no path, or in Python 3.13 a file that does not open
        ("weights\0.bin", "no path"),
        ("none.bin", "No such file"),
        ("x" * 5000, "too long"),
    ],
)
def test_data_are_read_from_the_folder_of_the_model_alone(location: str, word: str, folder: Path) -> None:
    found = only(outside(folder, location=location))
    assert found.code == "LIP004"
    assert word in found.message
    assert found.help


def test_data_may_lie_anywhere_inside_the_folder(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "weights.bin").write_bytes(b"\0" * 8 + SMALL["w"].tobytes() + b"more")
    options = ModelOptions(loss="cross_entropy")
    for entries in (
        {"location": "weights.bin"},
        {"location": "near.bin", "length": "144"},
        {"location": "data/weights.bin", "offset": "8"},
        {"location": "data/../data/weights.bin", "offset": "8", "length": "144", "checksum": "0"},
    ):
        loaded = check(str(outside(folder, **entries)), options)
        assert loaded.analysis is not None
        parameter = loaded.analysis.graph.parameters["Gemm_y.weight"]
        assert parameter.initial is not None
        np.testing.assert_array_equal(parameter.initial, SMALL["w"].T)


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "4"},
        {"offset": str(2**62)},
        {"length": "143"},
        {"length": str(2**62)},
        {"offset": "-4"},
        {"offset": "9" * 40},
        {"offset": "0x0"},
        {"length": "٣"},
        {"length": ""},
    ],
)
def test_parts_that_a_data_file_does_not_have(entries: dict[str, str], folder: Path) -> None:
    assert only(outside(folder, location="weights.bin", **entries)).code == "LIP004"


def test_one_data_file_cannot_stand_for_many(folder: Path) -> None:
    """A thousand tensors at one place of a file would take a thousand times its size."""
    made = model([node("Gemm", "x w0", "y")], ("n", 6))
    for index in range(1000):
        tensor = made.graph.initializer.add(name=f"w{index}", dims=[6, 6], data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
    found = only(save(made, folder), ModelOptions(limits=Limits(file_size=150_000)))
    assert (found.code, "--limit file-size=" in found.help) == ("LIP018", True)


@pytest.mark.parametrize("kind", ["attribute", "sparse attribute", "sparse initializer", "subgraph", "function"])
def test_data_elsewhere_are_looked_after_wherever_a_tensor_may_stand(kind: str, folder: Path) -> None:
    far = TensorProto(name="w", dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    far.external_data.add(key="location", value="../secret.bin")
    sparse = onnx.SparseTensorProto(values=far, dims=[4])
    constant = onnx.NodeProto(op_type="Constant", output=["w"])
    if kind == "sparse attribute":
        sparse_kind = onnx.AttributeProto.SPARSE_TENSOR
        field = onnx.AttributeProto(name="sparse_value", type=sparse_kind, sparse_tensor=sparse)
    else:
        field = onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, t=far)
    constant.attribute.append(field)
    made = model([node("Relu", "x", "y")], ("n", 6))
    if kind == "sparse initializer":
        made.graph.sparse_initializer.append(sparse)
    elif kind == "subgraph":
        inner = helper.make_graph([constant], "inner", [], [])
        made.graph.node.insert(0, helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner))
    elif kind == "function":
        opsets = [helper.make_opsetid("", 17)]
        made.functions.append(helper.make_function("com.example", "F", [], ["w"], [constant], opsets))
    else:
        made.graph.node.insert(0, constant)
    found = only(save(made, folder))
    assert (found.code, "outside" in found.message) == ("LIP004", True)


# ONNX files


def with_tensor(**fields: object) -> onnx.ModelProto:
    made = model([node("Gemm", "x w", "y")], ("n", 6))
    made.graph.initializer.append(TensorProto(**{"name": "w", "data_type": TensorProto.FLOAT, **fields}))  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (with_tensor(dims=[-6, -6], raw_data=b"\0" * 144), "shape [-6, -6]"),
        (with_tensor(dims=[6, 6], raw_data=b"\0" * 143), "do not fill"),
        (with_tensor(dims=[2**40], raw_data=b"\0" * 4), "do not fill"),
        (with_tensor(dims=[2**32, 2**32], raw_data=b""), "do not fill"),
        (with_tensor(dims=[2**40]), "holds no entries"),
        (with_tensor(dims=[6, 6], data_type=99, raw_data=b"\0" * 144), "unknown kind"),
        (with_tensor(dims=[1], data_type=TensorProto.STRING, raw_data=b"a" * 7), "do not fill"),
    ],
)
def test_tensors_that_contradict_themselves(made: onnx.ModelProto, word: str, tmp_path: Path) -> None:
    found = only(save(made, tmp_path))
    assert found.code == "LIP003"
    assert word in found.message


def constant_of(shape: list[int]) -> onnx.ModelProto:
    made = [node("ConstantOfShape", "s", "c"), node("Add", "x c", "y")]
    return model(made, ("n", 6), {"s": ints(*shape)})


def doubled() -> onnx.ModelProto:
    """Constants that double forty times."""
    nodes = [node("Concat", f"c{i} c{i}", f"c{i + 1}", axis=0) for i in range(40)]
    return model([*nodes, node("Add", "x c40", "y")], ("n", 6), {"c0": floats(6)})


LONG = {"a": np.array(0.0, np.float32), "b": np.array(1e12, np.float32), "c": np.array(1.0, np.float32)}


@pytest.mark.parametrize(
    "made",
    [
        constant_of([2**40]),
        constant_of([2**20, 2**20]),
        constant_of([2**62, 2**62]),
        model([node("Expand", "w s", "c"), node("Add", "x c", "y")], ("n", 6), {**SMALL, "s": ints(2**30, 6, 6)}),
        model([node("Tile", "w s", "c"), node("Add", "x c", "y")], ("n", 6), {**SMALL, "s": ints(2**20, 2**20)}),
        model([node("Range", "a b c", "d"), node("Add", "x d", "y")], ("n", 6), LONG),
        model(
            [node("Add", "p q", "c"), node("Add", "x c", "y")],
            ("n", 6),
            {"p": floats(20_000, 1), "q": floats(1, 20_000)},
        ),
        model(
            [node("MatMul", "p q", "c"), node("Add", "x c", "y")],
            ("n", 6),
            {"p": floats(20_000, 1), "q": floats(1, 20_000)},
        ),
        doubled(),
    ],
    ids=["shape", "shapes", "overflow", "expand", "tile", "range", "broadcast", "product", "doubling"],
)
def test_constants_that_would_fill_the_memory(made: onnx.ModelProto, tmp_path: Path) -> None:
    found = only(save(made, tmp_path))
    assert (found.code, "--limit constants=" in found.help) == ("LIP018", True)


def test_constants_count_together(tmp_path: Path) -> None:
    nodes = [node("ConstantOfShape", "s", f"c{i}") for i in range(9)]
    added = node("Sum", " ".join(["x", *(f"c{i}" for i in range(9))]), "y")
    made = model([*nodes, added], ("n", 6), {"s": ints(2**13, 2**10)})  # of 32 MiB each
    assert only(save(made, tmp_path)).code == "LIP018"
    assert not [
        d for d in told(save(made, tmp_path), ModelOptions(limits=Limits(constants=2**30))) if d.code == "LIP018"
    ]


def chain(body: Callable[[int], onnx.FunctionProto], count: int) -> onnx.ModelProto:
    made = model([node("F0", "x", "y", domain="com.example")], ("n", 6))
    made.functions.extend(body(i) for i in range(count))
    return made


def twice(index: int, last: int = 39) -> onnx.FunctionProto:
    """A function that calls the next one twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    if index == last:
        nodes = [helper.make_node("Relu", ["a"], ["b"])]
    else:
        name = f"F{index + 1}"
        nodes = [helper.make_node(name, [p], [q], domain="com.example") for p, q in (("a", "m"), ("m", "b"))]
    return helper.make_function("com.example", f"F{index}", ["a"], ["b"], nodes, opsets)


def test_functions_that_grow_exponentially(tmp_path: Path) -> None:
    found = only(save(chain(twice, 40), tmp_path))
    assert (found.code, "--limit nodes=" in found.help) == ("LIP018", True)


def test_functions_that_call_themselves(tmp_path: Path) -> None:
    for count in (1, 2, 39):  # the last one calls the first
        made = chain(lambda i: twice(i, 99), count)
        for call in made.functions[-1].node:
            call.op_type = "F0"
        found = only(save(made, tmp_path))
        assert (found.code, "calls itself" in found.message) == ("LIP003", True)


def test_functions_whose_meaning_is_open(tmp_path: Path) -> None:
    made = chain(lambda _: twice(39), 2)
    made.graph.node[0].op_type = "F39"
    assert "defined twice" in only(save(made, tmp_path)).message
    made = chain(lambda _: twice(39), 1)
    made.functions[0].domain, made.functions[0].name = "ai.onnx", "Relu"
    made.graph.node[0].op_type, made.graph.node[0].domain = "Relu", ""
    assert only(save(made, tmp_path)).code == "LIP109"


def test_large_attributes_are_not_copied_into_every_place(tmp_path: Path) -> None:
    """A thousand references to an attribute of a megabyte."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    nodes = []
    for index in range(1000):
        constant = helper.make_node("Constant", [], [f"c{index}"])
        constant.attribute.append(
            helper.make_attribute_ref("value", onnx.AttributeProto.TENSOR, ref_attr_name="big")
        )
        nodes.append(constant)
    body = [*nodes, helper.make_node("Relu", ["a"], ["b"])]
    big = helper.make_tensor("big", TensorProto.FLOAT, [2**18], bytes(2**20), raw=True)
    made = model([node("F", "x", "y", domain="com.example", big=big)], ("n", 6))
    made.functions.append(helper.make_function("com.example", "F", ["a"], ["b"], body, opsets, ["big"]))
    limits = ModelOptions(limits=Limits(file_size=2**28))
    assert only(save(made, tmp_path), limits).code == "LIP018"


def test_circles_are_told_as_such(tmp_path: Path) -> None:
    made = model(
        [node("Add", "x c", "a"), node("Relu", "a", "b"), node("Relu", "b", "c")], ("n", 6), outputs=["c"]
    )
    found = only(save(made, tmp_path))
    assert found.code == "LIP003"
    assert "circle" in found.message
    assert all(f"`{name}`" in found.message for name in "abc")


def test_everything_that_is_wrong_with_names_is_told_at_once(tmp_path: Path) -> None:
    nodes = [
        node("Relu", "later", "a"),
        node("Relu", "x", "later"),
        node("Relu", "x", "a"),
        node("Relu", "a", "y"),
    ]
    made = model(nodes, ("n", 6), SMALL)
    made.graph.initializer.append(made.graph.initializer[0])
    found = told(save(made, tmp_path))
    assert {entry.code for entry in found} == {"LIP003"}
    assert [entry.message for entry in found] == [
        "the stored tensor `w` is declared twice",
        "`a` is made twice",
        "`later` is read, and nothing makes it before",
    ]
    assert [entry.node for entry in found] == [None, "Relu_a", "Relu_a"]


def nested(depth: int) -> onnx.ModelProto:
    graph = helper.make_graph([node("Relu", "x", "z")], "inner", [], [])
    for _ in range(depth):
        branch = helper.make_node("If", ["c"], ["z"], then_branch=graph)
        graph = helper.make_graph([branch], "outer", [], [])
    made = model([], ("n", 6))
    made.graph.node.extend(graph.node)
    return made


def test_subgraphs_in_subgraphs(tmp_path: Path) -> None:
    assert {found.code for found in told(save(nested(20), tmp_path))} == {"LIP003"}
    content = bytearray(b"\x0a\x00")  # a node
    for _ in range(300):  # GraphProto.node, NodeProto.attribute, AttributeProto.g
        for tag in (0x32, 0x2A, 0x0A):
            content = bytearray([tag]) + varint(len(content)) + content
    (tmp_path / "deep.onnx").write_bytes(b"\x08\x08\x3a" + varint(len(content)) + content)
    assert only(tmp_path / "deep.onnx").code in ("LIP003", "LIP018")


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def bomb(count: int) -> bytes:
    """A graph of empty nodes: two bytes each in the file, a hundred in memory."""
    return b"\x08\x08\x3a" + varint(2 * count) + b"\x0a\x00" * count


def test_messages_that_swell_are_not_decoded(tmp_path: Path) -> None:
    (tmp_path / "bomb.onnx").write_bytes(bomb(2_100_000))
    found = only(tmp_path / "bomb.onnx")
    assert (found.code, "--limit nodes=" in found.help) == ("LIP018", True)


def test_too_many_nodes(tmp_path: Path) -> None:
    (tmp_path / "many.onnx").write_bytes(bomb(60_000) + b"\x42\x02\x10\x11")
    assert only(tmp_path / "many.onnx").code == "LIP018"


# Nothing of a file is run, and nothing of it reaches a terminal


def test_text_in_place_of_numbers(tmp_path: Path) -> None:
    entries: list[Any] = [b"__import__('os').system('touch pwned')"]
    text = helper.make_tensor("w", TensorProto.STRING, [1], entries)
    made = model([node("Gemm", "x w", "y")], ("n", 6))
    made.graph.initializer.append(text)
    assert "error" in {found.severity for found in told(save(made, tmp_path))}
    made = model([node("Constant", "", "w", value=text), node("Gemm", "x w", "y")], ("n", 6))
    assert "error" in {found.severity for found in told(save(made, tmp_path))}


def test_reading_a_model_loads_no_pickle_and_evaluates_nothing(tmp_path: Path) -> None:
    """What could run code is taken away before a model is read that uses all of what is read."""
    program = """
import builtins, pickle, sys
def refuse(*_, **__): raise SystemExit("code was run")
pickle.loads = pickle.load = pickle.Unpickler = refuse
from lipcompile.__main__ import run
running = ("os.system", "subprocess.Popen", "os.exec")
sys.addaudithook(lambda event, arguments: refuse() if event in running else None)
sys.exit(run(["check", sys.argv[1], "--loss", "cross_entropy", "--format", "json"]))
"""
    nodes = [node("Transpose", "w", "v", perm=[1, 0]), node("Gemm", "x v b", "h"), node("Relu", "h", "y")]
    path = save(model(nodes, ("n", 6), {**SMALL, "b": floats(6)}), tmp_path)
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


HOSTILE_NAMES = (
    "x'; import os; os.system('touch pwned') #",
    '"""\nimport os\n"""',
    "\x1b[31mred",
    "a\nb",
    "../../x",
    "{0}",
    "%s",
)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_do_not_become_code(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import ast

    gemm = helper.make_node("Gemm", ["x", f"{name}.weight"], [f"{name}.out"], name=name)
    relu = helper.make_node("Relu", [f"{name}.out"], ["y"], name=name)
    made = model(
        [gemm, relu], ("n", 6), {f"{name}.weight": floats(6, 6)}, metadata={"lipcompile.loss": "cross_entropy"}
    )
    path, module = save(made, tmp_path), tmp_path / "module.py"
    assert run(["check", str(path), "--input-norm", "1"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert run(["compile", str(path), "--input-norm", "1", "-o", str(module)]) == 0
    tree = ast.parse(module.read_text())
    imported = {alias.name for found in ast.walk(tree) if isinstance(found, ast.Import) for alias in found.names}
    assert "os" not in imported
    calls = [found.func for found in ast.walk(tree) if isinstance(found, ast.Call)]
    assert not [call for call in calls if isinstance(call, ast.Attribute) and call.attr == "system"]


# Memory

MEGABYTES = 1024


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEGABYTES * 2**20, MEGABYTES * 2**20))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    by_day(
        {"bomb.onnx", "constants.onnx", "wide.lip", "counted.lip"},
        ["bomb.onnx", "constants.onnx", "wide.lip", "counted.lip", "long.lip", "text.lip"],
    ),
)
def test_memory_is_bounded(name: str, tmp_path: Path) -> None:
    """With a gigabyte there is no failure but a diagnostic, whatever the file asks for."""
    files: dict[str, bytes] = {
        "bomb.onnx": bomb(1_900_000),
        "constants.onnx": model(
            [*[node("ConstantOfShape", "s", f"c{i}") for i in range(20)], node("Relu", "x", "y")],
            ("n", 6),
            {"s": ints(2**11, 2**11)},
        ).SerializeToString(),
        "wide.lip": b"model m { input x: tensor[100000000], norm <= 1\n dense(100000000) relu }",
        "counted.lip": (
            b"model m { input x: tensor[2, 500000], norm <= 1\n conv1d(2, 2, padding=1, padding_mode=circular) }"
        ),
        "long.lip": HEAD.encode() + b"repeat 4900 { dense(4, bias=0.5) relu } }",
        "text.lip": HEAD.encode() + b"relu\n" * 9_000 + b"}",
    }
    path = tmp_path / name
    path.write_bytes(files[name])
    command = [sys.executable, "-P", "-m", "lipcompile", "check", str(path), "--loss", "cosine:floor=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limited)
    assert done.returncode in (0, 1, 2)
    assert "not enough memory" not in done.stderr
