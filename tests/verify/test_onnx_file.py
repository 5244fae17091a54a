"""ONNX files beside certificates: the file that was certified, a file that carries one, others, hostile ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import onnx
import pytest
from lipcompile_verify import files, onnx_file
from lipcompile_verify.document import ForeignError
from onnx import ModelProto, helper

import lipcompile
from lipcompile.certificates import certificate, encode
from lipcompile.emitters.onnx.emit import to_onnx

from .test_emitted import CONV, EXAMPLES, MERGED

WRITTEN = sorted(path.name for path in EXAMPLES.glob("*.onnx"))
"""Exported by torch, read by the compiler."""

Document = Mapping[str, Any]


def refusal(model: ModelProto | bytes, document: Document) -> str:
    try:
        onnx_file.check(model if isinstance(model, bytes) else model.SerializeToString(), document)
    except ForeignError as error:
        return str(error)
    return ""


def document_of(path: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(encode(certificate(lipcompile.check(str(path)))))
    return parsed


def carrying(model: ModelProto, document: Document, **metadata: str) -> ModelProto:
    """The model with a certificate in its metadata."""
    before = {entry.key: entry.value for entry in model.metadata_props}
    own = {
        "lipcompile.certificate": encode(document).decode(),
        **{f"lipcompile.{k}": v for k, v in metadata.items()},
    }
    helper.set_model_props(model, {**before, **own})
    return model


def exported(folder: Path, body: str) -> tuple[ModelProto, dict[str, Any]]:
    """A file that the compiler writes, and the certificate that it carries."""
    path = folder / "net.lip"
    path.write_text(f"model net {{ {body} }}")
    derivation, document = lipcompile.check(str(path)), document_of(path)
    assert derivation.analysis is not None
    return carrying(to_onnx(derivation.analysis.graph), document), document


@pytest.mark.parametrize("name", WRITTEN)
def test_the_file_that_was_certified(name: str) -> None:
    path = EXAMPLES / name
    assert files.check_model(path, document_of(path)) == []


def test_any_other_file_is_refused() -> None:
    first, second = (document_of(EXAMPLES / name) for name in WRITTEN)
    assert "not the certified one" in refusal((EXAMPLES / WRITTEN[0]).read_bytes(), second)
    assert "not the certified one" in refusal((EXAMPLES / WRITTEN[0]).read_bytes() + b"\x12\x00", first)


CONV_CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "a stride": lambda node: node["attributes"].update(stride=[2, 2]),
    "a padding": lambda node: node["attributes"].update(padding=[[0, 1], [1, 1]]),
    "a dilation": lambda node: node["attributes"].update(dilation=[2, 2]),
    "a kernel": lambda node: node["attributes"].update(kernel=[3, 2]),
    "groups": lambda node: node["attributes"].update(groups=2),
    "the op": lambda node: node.update(op="conv_transpose"),
}


@pytest.mark.parametrize("change", CONV_CHANGES)
def test_a_geometry_that_the_file_does_not_say_is_refused(change: str) -> None:
    """As if the importer had read it so: the hash is that of the file."""
    path = EXAMPLES / "convnet.onnx"
    document = document_of(path)
    CONV_CHANGES[change](next(node for node in document["graph"]["nodes"] if node["op"] == "conv"))
    assert "the certificate has no Conv" in refusal(path.read_bytes(), document)


def test_a_weight_of_another_shape_is_refused() -> None:
    path = EXAMPLES / "convnet.onnx"
    document = document_of(path)
    node = next(node for node in document["graph"]["nodes"] if node["op"] == "conv")
    document["graph"]["parameters"][node["parameters"]["weight"]]["shape"][0] += 1
    assert "the certificate has no Conv" in refusal(path.read_bytes(), document)


# Files that carry a certificate


@pytest.mark.parametrize("body", [CONV, MERGED], ids=["conv", "merged"])
def test_a_file_that_the_compiler_wrote(body: str, tmp_path: Path) -> None:
    model, document = exported(tmp_path, body)
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    assert files.read_certificate(path) == document
    assert files.check_model(path, document) == []
    document["source"]["name"] = "other"
    assert "another certificate" in refusal(model, document)


def kernel(model: ModelProto, name: str) -> Any:
    """The operator that is a convolution of the certificate."""
    made = [node for node in model.graph.node if node.output[0].partition(".")[0] == name]
    return next(node for node in made if node.op_type == "Conv")


def set_attribute(name: str, value: list[int]) -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        node = kernel(model, "first")
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return change


def rewire(old: str, new: str) -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        for node in model.graph.node:
            if old in node.input:
                node.input[list(node.input).index(old)] = new
                return
        raise AssertionError(old)

    return change


FILE_CHANGES: dict[str, Callable[[ModelProto], None]] = {
    "strides": set_attribute("strides", [1, 1]),
    "pads": set_attribute("pads", [1, 1, 1, 0]),
    "dilations": set_attribute("dilations", [2, 2]),
    "kernel": set_attribute("kernel_shape", [2, 2]),
    "group": lambda model: kernel(model, "first").attribute.append(helper.make_attribute("group", 2)),
    "another operand": rewire("first", "image"),
    "another weight": rewire("second.weight", "first.weight"),
    "a bias left out": lambda model: kernel(model, "first").input.pop(),
    "another output": lambda model: setattr(model.graph.output[0], "name", "flatten"),
    "two outputs": lambda model: model.graph.output.append(model.graph.output[0]),
    "another input": lambda model: setattr(model.graph.input[0], "name", "picture"),
    "a weight of another shape": lambda model: model.graph.initializer[0].dims.append(1),
    "a node that is missing": lambda model: model.graph.node.pop(),
    "a node twice": lambda model: model.graph.node.append(model.graph.node[-1]),
    "a stored tensor that hides a node": lambda model: setattr(model.graph.initializer[0], "name", "first"),
}


@pytest.mark.parametrize("change", FILE_CHANGES)
def test_a_changed_file_is_refused(change: str, tmp_path: Path) -> None:
    model, document = exported(tmp_path, CONV)
    assert refusal(model, document) == ""
    FILE_CHANGES[change](model)
    assert refusal(model, document)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"input_norm": "2"}, "metadata"),
        ({"input_norm": "many"}, "metadata"),
        ({"input_norm": "1e999999999"}, "metadata"),
        ({"input_norm": "1/0"}, "metadata"),
        ({"loss": "hinge"}, "metadata"),
        ({"lipschitz": "2.0"}, "metadata"),
        ({"lipschitz": "nan"}, "metadata"),
        ({"input_norm": "3/2", "loss": "cross_entropy:temperature=0.7", "lipschitz": "inf"}, ""),
    ],
)
def test_metadata(metadata: dict[str, str], said: str, tmp_path: Path) -> None:
    model, document = exported(tmp_path, CONV)
    assert refusal(carrying(model, document, **metadata), document).partition(":")[0] == said


@pytest.mark.parametrize("text", ["", "{}", "[", '{"a": 1, "a": 1}', "\x00", "é"])
def test_what_is_no_certificate_is_refused(text: str, tmp_path: Path) -> None:
    model, document = exported(tmp_path, CONV)
    assert refusal(carrying(model, document, certificate=text), document).startswith("metadata")
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    if text != "{}":  # an object, of another schema
        with pytest.raises(ValueError, match="not a certificate"):
            files.read_certificate(path)


# Hostile files


def test_every_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    model, document = exported(tmp_path, "input x: tensor[2], norm <= 1 dense(2) loss cross_entropy")
    data = model.SerializeToString()
    assert all(refusal(data[:end], document) for end in range(len(data) - 1))


def test_changed_bytes_lead_to_a_verdict(tmp_path: Path) -> None:
    model, document = exported(tmp_path, CONV)
    data, rng = model.SerializeToString(), Random(0)
    for _ in range(2000):
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            changed[rng.randrange(len(data))] = rng.randrange(256)
        refusal(bytes(changed), document)


@pytest.mark.parametrize(
    "data",
    [
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a graph of 2^64 - 1 bytes
        b"\x3a" + b"\xff" * 11,  # a length of more than ten bytes
        b"\x3b\x3c",  # groups
        b"\x38\x01",  # a number in the place of the graph
        b"\x72\x04\x0a\x02\xff\xfe",  # a key that is no text
        b"\x72\x05\x0a\x01a\x12\x00" * 2,  # a key that stands twice
        b"\x3a\x00" * 2**11,  # more fields than are read
        b"\x3a\x05\x0a\x03\x22\x01A",  # an operator that makes nothing
        b"\x09\x00",  # eight bytes that are not there
    ],
)
def test_wire_formats_that_are_refused(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "MOST_FIELDS", 2**10)
    with pytest.raises(ForeignError, match="not an ONNX file"):
        onnx_file.read(data)


def test_what_is_read_is_what_onnx_reads(tmp_path: Path) -> None:
    """Against the protobuf of onnx, on all files there are."""
    model, _ = exported(tmp_path, CONV)
    for known in (model, *(onnx.load(str(EXAMPLES / name)) for name in WRITTEN)):
        found = onnx_file.read(known.SerializeToString())
        assert found.metadata == {entry.key: entry.value for entry in known.metadata_props}
        assert found.shapes == {tensor.name: list(tensor.dims) for tensor in known.graph.initializer}
        assert found.inputs == [value.name for value in known.graph.input]
        assert found.outputs == [value.name for value in known.graph.output]
        for one, other in zip(found.nodes, known.graph.node, strict=True):
            assert (one.kind, one.inputs, one.outputs) == (other.op_type, list(other.input), list(other.output))
            values = {a.name: helper.get_attribute_value(a) for a in other.attribute if a.type in (2, 3, 7)}
            assert one.attributes == {k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}
