"""For every diagnostic code an input that provokes it, as small as can be, and the command that reads it.

A code whose example in the table is a .lip program needs no entry here: its wrong example is the input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
from lipcompile_torch.deploy.deployment import Agreement
from onnx import TensorProto, helper
from torch.nn import Linear

import lipcompile
from lipcompile.certificates import certificate, encode
from lipcompile.cli.audit import refutation
from lipcompile.cli.certify import refutation as broken
from lipcompile.cli.export import refutation as wrong_export
from lipcompile.cli.shared.tables import read_from_rows
from lipcompile.cli.shared.verdicts import verified
from lipcompile.codes import codes
from lipcompile.core.backend import find
from lipcompile.core.graph import GraphBuilder, ParameterChoice
from lipcompile.core.record import Constraint
from lipcompile.diagnostics import Diagnostic, InputError
from lipcompile.frontends.lip.printer import print_model
from lipcompile.frontends.options import ModelOptions
from lipcompile.ops.linear.rules import DENSE, Dense
from lipcompile.pipeline import derive, load
from lipcompile.tables.schema_file import KINDS_READ
from tests.frontends.onnx.onnx_models import Array, floats, model, node, save

Make = Callable[[Path], object]
EXAMPLES = Path(__file__).parents[2] / "examples"

GOOD = """
model m {
    input x: tensor[4], norm <= 1
    dense(2)
    loss cross_entropy
}
"""


# Rectifiers halve what the bound counts in full, nine times.
SMALL_GRADIENTS = """
model m {
    input x: tensor[64], norm <= 1
    repeat 9 { dense(64, constraint=spectral(1.5)); relu; dense(8) }
    dense(2)
    loss cross_entropy
}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A command behind `lipcompile`, run in a folder that `make` filled; `exit` is its exit code.

    If `api` is given it provokes the diagnostic instead: no command can.
    """

    command: str
    make: Make
    exit: int = 1
    api: Callable[[], Sequence[Diagnostic]] | None = None


def texts(**files: str) -> Make:
    """Write .lip files, by their names without the ending."""

    def make(folder: Path) -> None:
        for name, text in files.items():
            (folder / f"{name}.lip").write_text(text, encoding="utf-8")

    return make


def network(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str],
    weights: Mapping[str, Array] | None = None,
    *,
    opset: int = 17,
    outputs: Sequence[str] = ("y",),
) -> Make:
    """Write model.onnx."""
    return lambda folder: save(model(nodes, shape, weights, opset=opset, outputs=outputs), folder)


def good(folder: Path) -> None:
    """Write model.lip, which nothing is wrong with."""
    texts(model=GOOD)(folder)


def example(code: str) -> Make:
    """Write the wrong example of the table as model.lip."""
    return texts(model=codes()[code].wrong)


# Files


def no_onnx(folder: Path) -> None:
    (folder / "model.onnx").write_text("<!doctype html>", encoding="utf-8")


def truncated(folder: Path) -> None:
    (folder / "model.onnx").write_bytes((EXAMPLES / "mlp.onnx").read_bytes()[:1000])


def without_its_data(folder: Path) -> None:
    made = model([node("Gemm", "x w", "y")], ("n", 6), {"w": floats(6, 6)})
    onnx.save_model(
        made,
        folder / "model.onnx",
        save_as_external_data=True,
        location="weights.data",
        size_threshold=0,
    )
    (folder / "weights.data").unlink()


def two_models(folder: Path) -> None:
    texts(zoo="model small { input x: tensor[2] }\nmodel large { input x: tensor[4] }\n")(folder)


def broken_plugin(folder: Path) -> None:
    """Write what an installed distribution looks like whose entry point leads nowhere."""
    good(folder)
    installed = folder / "my_ops-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: my-ops\nVersion: 1.0\n", encoding="utf-8")
    (installed / "entry_points.txt").write_text("[lipcompile.ops]\nshrink = my_ops:SHRINK\n", encoding="utf-8")


# Graphs of ONNX

BATCH_NORM = {name: np.ones(6, np.float32) for name in ("bn1.weight", "bn1.bias", "bn1.mean", "bn1.var")}


TWICE = 2 * np.eye(6, dtype=np.float32)


def without_inputs(folder: Path) -> None:
    made = model([node("Gemm", "x w", "y")], (1, 6), {"w": floats(6, 6), "x": floats(1, 6)})
    del made.graph.input[:]
    save(made, folder)


def trained_statistics(folder: Path) -> None:
    """A batch normalisation of a module in training mode, as torch's second exporter writes it."""
    normalised = node("BatchNormalization", "x scale shift mean variance", "h")
    call = (
        "%bn : [num_users=3] = call_function[target=torch.ops.aten._native_batch_norm_legit_functional.default]"
        "(args = (%x, %weight, %bias, %mean, %variance, True, 0.1, 1e-05), kwargs = {})"
    )
    told = {
        "name_scopes": "['', 'block.bn', '_native_batch_norm_legit_functional']",
        "class_hierarchy": "['Net', 'torch.nn.modules.batchnorm.BatchNorm1d', 'aten.batch_norm.default']",
        "fx_node": call,
    }
    for key, value in told.items():
        normalised.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    weights = {"scale": floats(6), "shift": floats(6), "mean": floats(6), "variance": abs(floats(6))}
    nodes = [normalised, node("Gemm", "h weight", "y", transB=1)]
    save(model(nodes, ("n", 6), {**weights, "weight": floats(2, 6)}), folder)


def copied_bias(folder: Path) -> None:
    """A bias of zeros, stored once, that two layers use: as torch's exporter writes it."""
    nodes = [
        node("Identity", "first.bias", "second.bias"),
        node("Gemm", "x first.weight first.bias", "h"),
        node("Gemm", "h second.weight second.bias", "y"),
    ]
    weights = {"first.weight": floats(6, 6), "second.weight": floats(6, 6, seed=1), "first.bias": np.zeros(6)}
    save(model(nodes, ("n", 6), {name: w.astype(np.float32) for name, w in weights.items()}), folder)


def wrong_constraint() -> Sequence[Diagnostic]:
    """A ball is a constraint of biases: no front end offers it for a weight."""
    builder = GraphBuilder("m")
    source = builder.input("x", (4,), Fraction(1), False, None)
    choice = ParameterChoice(Constraint("ball", Fraction(1)))
    builder.add(DENSE, Dense(2), [source], name="out", parameters={"weight": choice})
    return builder.diagnostics


def empty_input() -> Sequence[Diagnostic]:
    """Front ends ask for sizes above 0 before the graph does."""
    builder = GraphBuilder("m")
    builder.input("x", (0,), Fraction(1), False, None)
    return builder.diagnostics


def nothing_but_a_number() -> Sequence[Diagnostic]:
    """An example without axes: ONNX has it, .lip does not."""
    builder = GraphBuilder("m")
    graph = builder.finish(builder.input("x", (), Fraction(1), False, None), None)
    assert graph is not None
    try:
        print_model(graph)
    except InputError as error:
        return error.diagnostics
    return ()


class Doubled:
    """An original that is not what was imported."""

    runner, batch, precision = "somebody else", None, "float32"

    def __call__(self, x: Array) -> Array:
        return 2 * x


def a_wrong_import() -> Sequence[Diagnostic]:
    """No import is known to be wrong: identity, held against something else."""
    with TemporaryDirectory() as folder:
        path = save(model([node("Identity", "x", "y")], ("n", 6)), Path(folder))
        loaded = replace(load(str(path), ModelOptions()), original=Doubled)
        found = verified(loaded, derive(loaded, ModelOptions()), find()).diagnostics
    return [replace(one, location=None) for one in found if one.code == "LIP320"]


def two_inputs(folder: Path) -> None:
    made = model([node("Add", "x u", "y")], ("n", 6))
    made.graph.input.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, ("n", 6)))
    save(made, folder)


# Modules of torch: each file has a name of its own, for Python keeps what it imported


def module(code: str, body: str, more: str = "") -> Make:
    """Write a Python module in which `Network` is a class whose forward pass has this body."""
    text = _NETWORK.format(body=body) + more
    return lambda folder: (folder / f"net_{code}.py").write_text(text, encoding="utf-8")


_NETWORK = """
import torch
from torch import nn

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        {body}
"""
PARAMETRISED = """

def net():
    network = Network()
    network.layer = nn.utils.parametrizations.weight_norm(network.layer)
    return network
"""
UNREAD = """

def net():
    network = Network()
    network.forgotten = nn.Linear(6, 2)
    return network
"""
PADDED = """

def net():
    return nn.Sequential(nn.Embedding(20, 4, padding_idx=0), nn.Flatten(), nn.Linear(16, 2))
"""
WRITTEN = """

def net():
    network = Network()
    network.register_buffer("mean", torch.zeros(4))
    return network
"""
HALVED = """

def net():
    return Network().half()
"""
UNTRACEABLE = "return torch.from_numpy(self.layer(x).detach().numpy() * 2)"


def reading(code: str, name: str = "Network", shape: int = 4) -> str:
    """Return the command that reads such a module."""
    return f"check net_{code}:{name} --input-shape {shape} --input-norm 1 --loss cross_entropy"


# Training

TRAINED = f"{GOOD}train {{ sampling poisson(batch=4, dataset=8); budget epsilon=3, delta=1e-3, epochs=1 }}\n"


def planned(folder: Path, width: int = 4) -> None:
    texts(model=TRAINED)(folder)
    np.savez(
        folder / "data.npz",
        x_train=floats(8, width),
        y_train=np.arange(8) % 2,
        x_test=floats(4, width),
        y_test=np.arange(4) % 2,
    )


def of_another_width(folder: Path) -> None:
    planned(folder, width=5)


def no_archive(folder: Path) -> None:
    planned(folder)
    (folder / "data.npz").write_bytes(b"no archive")


def an_earlier_run(folder: Path) -> None:
    planned(folder)
    (folder / "run").mkdir()
    (folder / "run" / "ledger.jsonl").touch()


# Tables


def table(content: str, schema: str = "") -> Make:
    """Write people.csv, and its schema if there is one."""

    def make(folder: Path) -> None:
        (folder / "people.csv").write_text(content, encoding="utf-8")
        if schema:
            (folder / "people.schema.toml").write_text(schema, encoding="utf-8")

    return make


PEOPLE = "age,income\n31,low\n62,high\n"
TABLE = "train people.csv --target income --epsilon 1"


def kinds_read() -> Sequence[Diagnostic]:
    """A warning on the way to a model."""
    return [read_from_rows(KINDS_READ, "write them down: lipcompile new people.csv --target income")]


def a_refuted_claim() -> Sequence[Diagnostic]:
    """No engine is known whose claim is refuted."""
    return [refutation(claimed=4.0, bound=4.712, delta=1e-5, confidence=0.95)]


# Certificates of robustness


def compiled(body: str) -> Make:
    """Write data.npz, and model.py as `compile` writes it, with other weights than its own in weights.pt."""

    def make(folder: Path) -> None:
        planned(folder)
        texts(net=f"model m {{ {body} }}")(folder)
        derivation = derive(load(str(folder / "net.lip"), ModelOptions()), ModelOptions())
        (folder / "model.py").write_text(find().emit(derivation), encoding="utf-8")
        (folder / "weights.pt").write_bytes(b"no weights")

    return make


def exportable(old: str, new: str) -> Make:
    """Write model.py with a passage replaced, and weights of it."""

    def make(folder: Path) -> None:
        import torch

        compiled(CLASSIFIER)(folder)
        text = (folder / "model.py").read_text(encoding="utf-8")
        assert old in text
        (folder / "model.py").write_text(text.replace(old, new), encoding="utf-8")
        torch.save({"dense.weight": torch.eye(4)[:2]}, folder / "weights.pt")

    return make


def a_wrong_export() -> Sequence[Diagnostic]:
    """No module is known whose export differs, unless it was edited."""
    return [wrong_export(Agreement(70, 1.0, 2.0, 40.0))]


def weights_of_another_module() -> Sequence[Diagnostic]:
    """Load the weights of a layer into a wider one."""
    with pytest.raises(InputError) as found:
        lipcompile.load_trained(Linear(3, 4), lipcompile.private(Linear(3, 2), [3], bounds="clip"), [3])
    return found.value.diagnostics


def a_broken_certificate() -> Sequence[Diagnostic]:
    """No module is known whose certificates are broken."""
    return [broken(2)]


# Certificates of derivations


def certified(change: Callable[[Any], None], name: str) -> Make:
    """Write the certificate of a model of one layer, changed."""

    def make(folder: Path) -> None:
        good(folder)
        derivation = derive(load(str(folder / "model.lip"), ModelOptions()), ModelOptions())
        document = certificate(derivation)
        change(document)
        (folder / name).write_bytes(encode(document))
        other = GOOD.replace("dense(2)", "dense(3)")
        texts(other=other)(folder)
        derivation = derive(load(str(folder / "other.lip"), ModelOptions()), ModelOptions())
        (folder / "other.py").write_text(find().emit(derivation), encoding="utf-8")

    return make


def nothing(document: Any) -> None:
    """Leave a certificate as it is."""


def smaller(document: Any) -> None:
    """Claim half of the gradient bound."""
    (parameter,) = document["steps"]["parameters"]
    parameter["gradient"] = (float.fromhex(parameter["gradient"]) / 2).hex()


def larger(document: Any) -> None:
    """Claim twice the norm of the layer's output."""
    (step,) = document["steps"]["forward"]
    step["norm"] = (2 * float.fromhex(step["norm"])).hex()


EXPORT = "export model.py --weights weights.pt -o exported.onnx"
CLASSIFIER = "input x: tensor[4], norm <= 1; dense(2); loss cross_entropy"
TOKENS = "input x: tokens[4]; embedding(7, 2); flatten; dense(2); loss cross_entropy"


CHECK, TRAIN = (
    "check model.onnx --input-norm 1 --loss cross_entropy",
    "train model.lip --data data.npz --output run",
)

CASES: Mapping[str, Case] = {
    "LIP001": Case("check missing.lip", good, 2),
    "LIP002": Case("check model.onnx", no_onnx, 2),
    "LIP003": Case("check model.onnx", truncated, 2),
    "LIP004": Case("check model.onnx", without_its_data, 2),
    "LIP005": Case("check model.lip --constraint spectral=1", good, 2),
    "LIP006": Case("compile model.lip -o model.py --backend jax", good, 2),
    "LIP007": Case("check model.onnx", network([node("Relu", "x", "y")], ("n", 6), opset=6), 2),
    "LIP008": Case("check model.lip", broken_plugin, 2),
    "LIP010": Case("check model.lip", example("LIP010"), 2),
    "LIP015": Case("check model.lip", example("LIP015"), 2),
    "LIP016": Case("check zoo.lip", two_models, 2),
    "LIP018": Case("check model.lip --limit nodes=50000", example("LIP018"), 2),
    "LIP017": Case("", good, api=nothing_but_a_number),
    "LIP020": Case(reading("020", "Netwrk"), module("020", "return self.layer(x)"), 2),
    "LIP021": Case(reading("021"), lambda folder: (folder / "net_021.py").write_text("1 / 0\n"), 2),
    "LIP022": Case(reading("022", "nn"), module("022", "return self.layer(x)"), 2),
    "LIP023": Case(reading("023", shape=5), module("023", "return self.layer(x)"), 2),
    "LIP100": Case(CHECK, network([node("Exp", "x", "h"), node("Relu", "h", "y")], ("n", 6))),
    "LIP101": Case(
        CHECK,
        network(
            [
                node("Gemm", "x fc.weight", "h"),
                node("BatchNormalization", "h bn1.weight bn1.bias bn1.mean bn1.var", "y _ _", training_mode=1),
            ],
            ("n", 6),
            {"fc.weight": floats(6, 6), **BATCH_NORM},
        ),
    ),
    "LIP105": Case(CHECK, without_inputs),
    "LIP106": Case(CHECK, network([node("Relu", "x", "y")], ("n", 3, "length"))),
    "LIP107": Case(CHECK, network([node("Relu", "x", "y"), node("Abs", "x", "z")], ("n", 6), outputs=("y", "z"))),
    "LIP108": Case(CHECK, network([node("ReduceMean", "x", "y", axes=[0])], ("n", 6))),
    "LIP109": Case(CHECK, network([node("FusedLayer", "x", "y", domain="com.example")], ("n", 6))),
    "LIP110": Case(CHECK, network([node("LRN", "x", "y", size=4)], ("n", 6, 3))),
    "LIP112": Case("check model.lip", example("LIP112"), 0),
    "LIP113": Case(CHECK, two_inputs, 0),
    "LIP114": Case(CHECK, trained_statistics, 0),
    "LIP120": Case(reading("120"), module("120", "return self.layer(x) if x.sum() > 0 else self.layer(-x)")),
    "LIP121": Case(reading("121"), module("121", UNTRACEABLE)),
    "LIP122": Case(reading("122", "net"), module("122", "return self.layer(x)", PARAMETRISED), 0),
    "LIP123": Case(reading("123", "net"), module("123", "return self.layer(x)", UNREAD), 0),
    "LIP124": Case(reading("124", "net"), module("124", "return self.layer(x)", HALVED), 0),
    "LIP125": Case(
        "check net_125:net --input-shape 4 --loss cross_entropy",
        module("125", "return x", PADDED),
        0,
    ),
    "LIP126": Case(
        "check net_126:net --input-shape 4 --loss cross_entropy --bounds clip",
        module("126", "self.mean += 1; return self.layer(x - self.mean)", WRITTEN),
        0,
    ),
    "LIP127": Case(
        "check net_127:Network --input-shape 4 --input-norm 1 --loss cross_entropy --bounds clip",
        module("127", "return self.layer(x) - self.layer(x).detach() / 2"),
        0,
    ),
    "LIP128": Case(
        "check net_128:Network --input-shape 4 --loss cross_entropy --bounds clip",
        module("128", "return self.layer(x + torch.randn_like(x))"),
        0,
    ),
    "LIP129": Case(
        "check net_129:Network --input-shape 4 --loss cross_entropy --bounds clip",
        module("129", "return self.layer(torch.linalg.solve(2 * torch.eye(4), x.T).T)"),
        0,
    ),
    "LIP130": Case(
        "check net_130:Network --input-shape 4 --loss cross_entropy --bounds clip",
        module("130", "return self.layer(x).reshape(int(x.shape[0] / 1), -1)"),
        0,
    ),
    "LIP201": Case("check model.lip", example("LIP201"), 0),
    "LIP203": Case("", good, api=empty_input),
    "LIP213": Case("check model.lip", example("LIP213"), 0),
    "LIP214": Case(
        CHECK, network([node("Gemm", "x w", "h"), node("Softmax", "h", "y")], ("n", 6), {"w": floats(6, 6)})
    ),
    "LIP215": Case("check model.lip", example("LIP215"), 0),
    "LIP301": Case("", good, api=wrong_constraint),
    "LIP303": Case(CHECK, network([node("Gemm", "x w", "y")], ("n", 5), {"w": floats(6, 6)})),
    "LIP304": Case(
        CHECK, network([node("Gemm", "x w", "y")], ("n", 6), {"w": np.full((6, 6), np.nan, np.float32)})
    ),
    "LIP320": Case("", good, api=a_wrong_import),
    "LIP321": Case(f"{CHECK} --verify-import", network([node("Relu", "x", "y")], ("n", 6)), 0),
    "LIP305": Case(CHECK, network([node("Gemm", "x fc.weight", "y")], ("n", 6), {"fc.weight": TWICE}), 0),
    "LIP306": Case("check model.lip --freeze 'hiden.*'", good),
    "LIP307": Case("check model.lip", example("LIP307"), 0),
    "LIP308": Case(
        CHECK,
        network(
            [node("Mul", "w c", "v"), node("Gemm", "x v", "h"), node("Gemm", "h w", "y")],
            ("n", 6),
            {"w": floats(6, 6), "c": floats(1)},
        ),
    ),
    "LIP309": Case(CHECK, copied_bias, 0),
    "LIP310": Case("check model.lip", example("LIP310")),
    "LIP311": Case("check model.lip --signal", texts(model=SMALL_GRADIENTS)),
    "LIP315": Case("check model.lip", example("LIP315"), 0),
    "LIP317": Case("check model.lip", example("LIP317")),
    "LIP318": Case("check model.lip", example("LIP318")),
    "LIP401": Case("budget --epsilon 0.0001 --delta 1e-30 --sampling-rate 1 --steps 1000", good, 2),
    "LIP402": Case(TRAIN, no_archive, 2),
    "LIP403": Case(TRAIN, of_another_width, 2),
    "LIP405": Case(TRAIN, an_earlier_run, 2),
    "LIP406": Case("", good, api=a_refuted_claim),
    "LIP410": Case(TABLE, table("age,income\n31,low\n62\n"), 2),
    "LIP411": Case("train people.csv --target Income --epsilon 1", table(PEOPLE), 2),
    "LIP412": Case(TABLE, table(PEOPLE, '[columns]\nage = { kind = "number", lo = 0, high = 120 }\n'), 2),
    "LIP413": Case(TABLE, table(PEOPLE, 'target = "income"\n[columns]\nage = { kind = "boolean" }\n'), 2),
    "LIP414": Case(TABLE, table("age,income\n31,low\n62,low\n"), 2),
    "LIP415": Case("", good, api=kinds_read),
    "LIP501": Case("verify changed.json", certified(smaller, "changed.json")),
    "LIP502": Case("verify model.lip", good, 2),
    "LIP503": Case("verify model.json --module other.py", certified(nothing, "model.json")),
    "LIP504": Case("verify generous.json", certified(larger, "generous.json"), 0),
    "LIP510": Case("certify model.lip --data data.npz", good, 2),
    "LIP511": Case("certify model.py --data data.npz", compiled(TOKENS), 2),
    "LIP512": Case("", good, api=a_broken_certificate),
    "LIP513": Case("certify model.py --data data.npz --weights weights.pt", compiled(CLASSIFIER), 2),
    "LIP520": Case(EXPORT, exportable('"norm": "1"', '"norm": "2"'), 2),
    "LIP521": Case(EXPORT, exportable("lipcompile.certificate/1", "lipcompile.report/1"), 2),
    "LIP522": Case("", good, api=a_wrong_export),
    "LIP523": Case("", good, api=weights_of_another_module),
}

# Codes that no command can provoke, and why they are there.
BY_API_ALONE = {
    "LIP017": "writing a model raises it; what can be read and rewritten so far can be written, too",
    "LIP203": "front ends ask for sizes above 0 first; graphs can be built by Python programs",
    "LIP301": "front ends offer each parameter its own constraints; graphs can be built by Python programs",
    "LIP320": "no model is known whose import is wrong",
    "LIP406": "no engine is known whose claim is refuted",
    "LIP415": "commands warn of it, and go on",
    "LIP512": "no certificate is known that an attack breaks",
    "LIP522": "no module is known whose export differs, unless it was edited",
    "LIP523": "a function of Python raises it",
}


def case_of(code: str) -> Case | None:
    """Return the case of a code: its own, or that its wrong example in the table is checked."""
    if code in CASES or codes()[code].language != "lip":
        return CASES.get(code)
    return Case("check model.lip", example(code))
