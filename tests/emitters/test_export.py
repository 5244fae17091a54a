"""Trained modules as ONNX files: what onnxruntime computes of them, what they say, and when there is none."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from lipcompile_privacy.accounting import Accountant, Mechanism, NeighbouringRelation
from lipcompile_torch.nn.layers import Dense
from lipcompile_torch.train.ledger import Ledger, read_ledger
from lipcompile_verify import verify
from lipcompile_verify.files import check_model, read_certificate

import lipcompile
from lipcompile.analysis.bounds import derive as bounds_of
from lipcompile.analysis.sensitivity import analyse
from lipcompile.certificates import document, encode, graph_document
from lipcompile.core.derivation import Derivation
from lipcompile.core.graph import Graph
from lipcompile.diagnostics import InputError
from lipcompile.emitters.onnx import emit as onnx_emit
from lipcompile.emitters.torch.emit import emit
from lipcompile.emitters.torch.expressions import HOLDERS
from lipcompile.exporting import Export, _decimal, export_onnx
from lipcompile.frontends.options import ModelOptions
from lipcompile.numbers.certified import Certified
from lipcompile.ops.table import OPS
from tests.attacks.modules import random_model
from tests.certified import SOURCE, uses
from tests.emitters.test_emit import EXAMPLES, NETWORKS, OPEN, derive

SEEDS, DEEP = 12, 600
ACCOUNTANTS: tuple[Accountant, ...] = ("pld", "rdp")
SMALL = "input x: tensor[4], norm <= 2; dense(4, bias=1); groupsort; dense(3); loss cross_entropy"


def built(graph: Graph, derivation: Derivation, seed: int = 0) -> Any:
    """The emitted module, with random weights inside their constraints, and the certificate of its graph."""
    space: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(emit(derivation), "emitted.py", "exec"), space)
    torch.manual_seed(seed)
    module = space["Model"]()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        module.project_()
    assert module.certificate["graph"] == graph_document(graph)
    return module


def module_of(derivation: Derivation, seed: int = 0) -> Any:
    assert derivation.analysis is not None
    return built(derivation.analysis.graph, derivation, seed)


def small(folder: Path, body: str = SMALL) -> Any:
    return module_of(derive(folder, body.replace("; ", "\n")))


def written(module: Any, path: Path) -> Export:
    """Export; the file computes what the module does, and is that of its certificate."""
    found = export_onnx(module, path)
    assert found.ok, found.agreement
    assert found.certified
    carried = read_certificate(path)
    assert verify(carried).ok
    assert check_model(path, carried) == []
    return found


def checked(module: Any, total: float | None, path: Path) -> Export:
    """Export; what is read back is the same model with the same bounds."""
    found = written(module, path)
    again = lipcompile.check(str(path))
    assert again.ok, again.diagnostics
    assert again.analysis is not None
    untrained = not any(parameter.trainable for parameter in again.analysis.graph.parameters.values())
    assert [one.code for one in again.diagnostics if one.severity != "note"] == ["LIP307"] * untrained
    assert graph_document(again.analysis.graph) == graph_document(found.graph)
    assert again.analysis.total.value == total
    return found


def run(path: Path, x: Any) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


# What is computed


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_every_family(name: str, tmp_path: Path) -> None:
    derivation = derive(tmp_path, f"{NETWORKS[name]}\n loss cross_entropy")
    assert derivation.analysis is not None
    checked(module_of(derivation), derivation.analysis.total.value, tmp_path / "m.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example(example: Path, tmp_path: Path) -> None:
    derivation = lipcompile.check(str(example), ModelOptions(bindings=OPEN.get(example.stem, {})))
    assert derivation.analysis is not None
    checked(module_of(derivation), derivation.analysis.total.value, tmp_path / "m.onnx")


def of_graph(graph: Graph) -> Derivation:
    """The derivation of a graph that no file says."""
    analysis = analyse(graph)
    held = lipcompile.core.derivation.Requirement(True, "")
    return Derivation(SOURCE, lipcompile.core.derivation.Requirements(held, held, held), (), analysis)


@pytest.mark.slow
def test_every_op(tmp_path: Path) -> None:
    met = set()
    for seed, graph in enumerate(uses(each=1)):
        if any(node.op.name == "own_network" for node in graph.nodes):  # no operators of ONNX compute it
            continue
        derivation = of_graph(graph)
        assert derivation.analysis is not None
        module = built(graph, derivation, seed)
        if any(node.op.name in HOLDERS for node in graph.nodes):  # a graph has no constants to be read back
            written(module, tmp_path / "m.onnx")
        else:
            checked(module, derivation.analysis.total.value, tmp_path / "m.onnx")
        met |= {node.op.name for node in graph.nodes}
    assert met >= {op.name for op in OPS} - {"own_network"}


def attack(folder: Path, seeds: range) -> None:
    for seed in seeds:
        path = folder / "random.lip"
        path.write_text("model net {\n" + "\n".join(random_model(seed)) + "\n}\n")
        try:
            derivation = lipcompile.check(str(path))
        except InputError:
            continue
        if derivation.analysis is not None:
            checked(module_of(derivation, seed), derivation.analysis.total.value, folder / "m.onnx")


def test_random_models(tmp_path: Path) -> None:
    attack(tmp_path, range(SEEDS))


@pytest.mark.nightly
def test_many_random_models(tmp_path: Path) -> None:
    attack(tmp_path, range(SEEDS, DEEP))


def test_inputs_are_clipped_and_what_is_no_number_counts_as_zero(tmp_path: Path) -> None:
    """By hand: an identity of two entries, X_0 = 2."""
    module = small(tmp_path, "input x: tensor[2], norm <= 2; dense(2); loss cross_entropy")
    module.load_state_dict({"dense.weight": torch.eye(2)})
    export_onnx(module, tmp_path / "m.onnx")
    inf, nan = math.inf, math.nan
    x = np.array([[3, 4], [0.3, 0.4], [0, 0], [3e38, -3e38], [nan, 1], [inf, 1], [-inf, nan]], dtype=np.float32)
    root = 2**0.5
    wanted = [[1.2, 1.6], [0.3, 0.4], [0, 0], [root, -root], [0, 0], [0, 0], [0, 0]]
    assert run(tmp_path / "m.onnx", x) == pytest.approx(np.array(wanted), rel=1e-6)


@pytest.mark.parametrize("batch", [0, 1, 7])
def test_batches_of_any_size(batch: int, tmp_path: Path) -> None:
    export_onnx(small(tmp_path), tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx", np.zeros((batch, 4), dtype=np.float32)).shape == (batch, 3)


def test_a_trusted_input_is_not_clipped(tmp_path: Path) -> None:
    module = small(tmp_path, "input x: tensor[2], norm <= 2, trusted; dense(2); loss cross_entropy")
    module.load_state_dict({"dense.weight": torch.eye(2)})
    found = export_onnx(module, tmp_path / "m.onnx")
    x = np.array([[3, 4]], dtype=np.float32)
    assert run(tmp_path / "m.onnx", x) == pytest.approx(x, rel=1e-6)
    assert any("does not clip its input" in note for note in found.notes)


def test_a_model_without_an_input_norm(tmp_path: Path) -> None:
    """Clipped gradients need none; eleven lengths are compared, four of each, and zero."""
    clipped = "input x: tensor[4]; dense(4, clip=0.1); tanh; dense(3, clip=0.1); loss cross_entropy"
    found = export_onnx(small(tmp_path, clipped), tmp_path / "m.onnx")
    assert found.ok
    assert found.agreement.examples == 45


def test_dropout_and_gradient_clips_do_nothing(tmp_path: Path) -> None:
    module = small(tmp_path, "input x: tensor[4], norm <= 2; dropout(0.5); dense(3); clip_gradient(0.1); loss nll")
    assert export_onnx(module.train(), tmp_path / "m.onnx").ok
    assert module.training


def test_another_precision_is_exported_in_float32(tmp_path: Path) -> None:
    module = small(tmp_path).double()
    before = {name: p.clone() for name, p in module.named_parameters()}
    assert export_onnx(module, tmp_path / "m.onnx").certified
    assert {tensor.data_type for tensor in onnx.load(tmp_path / "m.onnx").graph.initializer} == {1}
    assert all(torch.equal(p, before[name]) and p.dtype == torch.float64 for name, p in module.named_parameters())


# What is said


def test_metadata(tmp_path: Path) -> None:
    """Weights of half of what is allowed: l = ½·1 of them, 1 of all."""
    module = small(tmp_path, "input x: tensor[4], norm <= 2; dense(3); loss cross_entropy(temperature=2)")
    module.load_state_dict({"dense.weight": torch.eye(4)[:3] / 2})
    found = export_onnx(module, tmp_path / "m.onnx")
    said = metadata(tmp_path / "m.onnx")
    assert said.pop("lipcompile.certificate") == encode(module.certificate).decode()
    assert float(said.pop("lipcompile.lipschitz_of_weights")) == pytest.approx(0.5, rel=1e-8)
    assert said == {
        "lipcompile.input_norm": "2",
        "lipcompile.loss": "cross_entropy:temperature=2",
        "lipcompile.graph_sha256": module.certificate["graph_sha256"],
        "lipcompile.weights": "certified",
        "lipcompile.lipschitz": "1",
    }
    assert found.spent is None
    assert found.notes == ("it says nothing of privacy: no ledger was given",)


def test_the_constant_of_the_weights_is_not_below_the_true_one(tmp_path: Path) -> None:
    body = (
        "input x: tensor[6], norm <= 2; dense(6); groupsort; dense(4, constraint=frobenius(2)); loss cross_entropy"
    )
    module = small(tmp_path, body)
    found = export_onnx(module, tmp_path / "m.onnx")
    assert found.lipschitz is not None
    first, last = (torch.linalg.matrix_norm(p.detach().double(), 2).item() for p in module.parameters())
    assert first * last <= found.lipschitz.of_weights <= first * last * (1 + 1e-6)
    assert found.lipschitz.declared == 2.0


@pytest.mark.parametrize("bound", [0.1, 1 / 3, 1 + 2**-52, 2 - 2**-52, 1e-300, 12345.678, 0.20879784524408157])
def test_decimals_are_not_below_what_they_stand_for(bound: float) -> None:
    assert Fraction(_decimal(bound)) >= Fraction(bound)
    assert float(_decimal(bound)) == bound


def test_equal_modules_give_equal_files(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        export_onnx(small(tmp_path), tmp_path / name)
    first, second = (onnx.load(tmp_path / name) for name in ("a.onnx", "b.onnx"))
    assert [entry for entry in first.metadata_props if "certificate" not in entry.key] == [
        entry for entry in second.metadata_props if "certificate" not in entry.key
    ]
    assert first.graph == second.graph


def test_tokens_have_no_constant(tmp_path: Path) -> None:
    module = small(tmp_path, "input x: tokens[4]; embedding(5, 3); flatten; dense(2); loss cross_entropy")
    found = export_onnx(module, tmp_path / "m.onnx")
    assert found.lipschitz is None
    assert "lipcompile.lipschitz" not in metadata(tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx", np.array([[0, 1, 4, 4]])).shape == (1, 2)


def test_an_op_that_jumps_leaves_no_constant(tmp_path: Path) -> None:
    module = small(tmp_path, "input x: tensor[4], norm <= 2; sign; dense(2); loss cross_entropy")
    assert export_onnx(module, tmp_path / "m.onnx").lipschitz is None


def test_weights_outside_their_sets_are_not_called_certified(tmp_path: Path) -> None:
    module = small(tmp_path)
    with torch.no_grad():
        module.dense.weight.mul_(1.01)
    found = export_onnx(module, tmp_path / "m.onnx")
    assert (found.ok, found.certified, found.lipschitz) == (True, False, None)
    said = metadata(tmp_path / "m.onnx")
    assert not said.keys() & {"lipcompile.weights", "lipcompile.lipschitz", "lipcompile.lipschitz_of_weights"}


def of_smaller_biases(module: Any) -> None:
    certificate = json.loads(encode(module.certificate))
    certificate["graph"]["parameters"]["dense.bias"]["bound"] = "1/2"
    type(module).certificate = resealed(certificate)


def of_smaller_bounds(module: Any) -> None:
    certificate = json.loads(encode(module.certificate))
    certificate["steps"]["parameters"][0]["gradient"] = (0.5).hex()
    type(module).certificate = certificate


def resealed(certificate: dict[str, Any]) -> Any:
    """A certificate of a changed graph, whatever it claims."""
    from lipcompile.certificates import hash_of

    return {**certificate, "graph_sha256": hash_of(certificate["graph"])}


# Privacy


def ledger(folder: Path, *, seeded: bool = False, noise: float = 1.5) -> Path:
    """Three steps of sampling a tenth of a hundred examples."""
    path, release = folder / "ledger.jsonl", Mechanism(0.1, noise)
    open_ledger = Ledger(path, NeighbouringRelation.ADD_REMOVE, 100)
    open_ledger.declare(release, seeded)
    for _ in range(3):
        open_ledger.record_step(release)
    open_ledger.close()
    return path


def test_what_was_spent_is_what_the_ledger_says(tmp_path: Path) -> None:
    path = ledger(tmp_path)
    found = export_onnx(small(tmp_path), tmp_path / "m.onnx", ledger=path, delta=1e-5)
    said = metadata(tmp_path / "m.onnx")
    asked = {name: read_ledger(path).epsilon(1e-5, name) for name in ACCOUNTANTS}
    assert said["lipcompile.accountant"] == "pld"
    assert float(said["lipcompile.epsilon"]) == asked["pld"] < asked["rdp"]
    assert (said["lipcompile.delta"], said["lipcompile.neighbouring_relation"]) == ("1e-05", "add_remove")
    assert said["lipcompile.ledger_head"] == json.loads(path.read_text().splitlines()[-1])["hash"]
    assert found.spent is not None
    by_rdp = export_onnx(small(tmp_path), tmp_path / "m.onnx", ledger=path, delta=1e-5, accountant="rdp")
    assert by_rdp.spent is not None
    assert by_rdp.spent.epsilon == asked["rdp"]


def test_a_seeded_training_states_no_epsilon(tmp_path: Path) -> None:
    found = export_onnx(small(tmp_path), tmp_path / "m.onnx", ledger=ledger(tmp_path, seeded=True))
    assert found.spent is None
    assert "lipcompile.epsilon" not in metadata(tmp_path / "m.onnx")
    assert found.notes == ("it states no ε: a seed was fixed, so the noise is predictable",)


@pytest.mark.parametrize(("delta", "code"), [(0.0, "LIP401"), (1.0, "LIP401")])
def test_a_delta_without_an_epsilon_is_refused(delta: float, code: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        export_onnx(small(tmp_path), tmp_path / "m.onnx", ledger=ledger(tmp_path), delta=delta)
    assert caught.value.diagnostics[0].code == code
    assert not (tmp_path / "m.onnx").exists()


def test_an_accountant_without_a_number_leaves_it_to_the_other(tmp_path: Path) -> None:
    """PLD has no room for a noise of 1e-4: what is left is RDP."""
    module, path, spent = small(tmp_path), tmp_path / "m.onnx", ledger(tmp_path, noise=1e-4)
    with pytest.raises(InputError, match="no accountant has a finite"):
        export_onnx(module, path, ledger=spent, accountant="pld")
    export_onnx(module, path, ledger=spent)
    assert metadata(path)["lipcompile.accountant"] == "rdp"


def test_a_delta_without_a_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="need a ledger"):
        export_onnx(small(tmp_path), tmp_path / "m.onnx", delta=1e-5)


# When there is no file


def test_a_module_that_computes_something_else_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, path = small(tmp_path), tmp_path / "m.onnx"
    export_onnx(module, path)
    before = path.read_bytes()
    forward = Dense.forward
    monkeypatch.setattr(Dense, "forward", lambda self, x: forward(self, x) * 1.001)
    assert not export_onnx(module, path).ok
    assert path.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir() if one.suffix in (".onnx", ".data")} == {"m.onnx"}


@pytest.mark.parametrize(
    ("op", "wrong"),
    [
        ("groupsort", lambda writer, _, x: writer.op("Identity", x[0])),
        ("relu", lambda writer, _, x: writer.op("LeakyRelu", x[0], alpha=0.01)),
        ("elu", lambda writer, _, x: writer.op("Elu", x[0], alpha=1.001)),
    ],
)
def test_a_wrong_writer_is_found(
    op: str, wrong: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = small(tmp_path, f"input x: tensor[4], norm <= 2; dense(4); {op}; dense(3); loss cross_entropy")
    monkeypatch.setitem(onnx_emit.EMITTERS, op, wrong)
    assert not export_onnx(module, tmp_path / "m.onnx").ok
    assert not (tmp_path / "m.onnx").exists()


def test_a_clip_of_another_radius_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_emit, "below", lambda value: float(value) * 1.001)
    assert not export_onnx(small(tmp_path), tmp_path / "m.onnx").ok


def hooked(module: Any) -> None:
    module.dense.register_forward_hook(lambda *_: None)


def of_another_shape(module: Any) -> None:
    type(module).certificate = resealed(
        {**module.certificate, "graph": {**module.certificate["graph"], "parameters": {}}}
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda module: setattr(type(module), "certificate", {"schema": "lipcompile.report/1"}), "no certificate"),
        (lambda module: setattr(type(module), "certificate", None), "no certificate"),
        (lambda module: setattr(type(module), "input_trusted", True), "the input of the module"),
        (lambda module: setattr(module.dense, "weight", torch.nn.Parameter(torch.zeros(2, 2))), "has shape"),
        (lambda module: setattr(module, "more", torch.nn.Parameter(torch.zeros(2))), "without a constraint"),
        (of_another_shape, "not declared"),
        (of_smaller_biases, "may have norm 1.0, certified 1/2"),
        (of_smaller_bounds, "does not verify"),
        (hooked, "hooks"),
    ],
)
def test_what_cannot_be_exported(change: Callable[[Any], None], said: str, tmp_path: Path) -> None:
    module = small(tmp_path)
    change(module)
    with pytest.raises((InputError, ValueError, RuntimeError), match=said):
        export_onnx(module, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    module = small(tmp_path)
    with torch.no_grad():
        module.dense.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="NaN or infinity"):
        export_onnx(module, tmp_path / "m.onnx")


# Read back


def test_what_was_changed_is_not_taken_for_what_was_exported(tmp_path: Path) -> None:
    """The certificate is believed only of the very file that it would be written as."""
    path = tmp_path / "m.onnx"
    export_onnx(
        small(tmp_path, "input x: tensor[4], norm <= 2; dense(4); relu; dense(3); loss nll"),
        path,
    )
    model = onnx.load(path)
    (relu,) = [node for node in model.graph.node if node.op_type == "Relu"]
    relu.op_type = "Abs"
    onnx.save(model, path)
    analysis = lipcompile.check(str(path)).analysis
    assert analysis is not None
    assert [node.op.name for node in analysis.graph.nodes] == ["dense", "abs", "dense"]


@pytest.mark.parametrize("norm", ["1", "2", "5"])
def test_options_go_before_what_the_file_says(norm: str, tmp_path: Path) -> None:
    """Of a larger ball the file's own clip remains; K of a first layer is √2·X."""
    path = tmp_path / "m.onnx"
    export_onnx(small(tmp_path, "input x: tensor[4], norm <= 2; dense(3); loss nll"), path)
    options = ModelOptions(input_norm=Fraction(norm), loss="nll", constraint="keep")
    analysis = lipcompile.check(str(path), options).analysis
    assert analysis is not None
    assert analysis.total.value == pytest.approx(min(2, int(norm)), rel=1e-9)
    assert ("clip_norm" in [node.op.name for node in analysis.graph.nodes]) == (norm != "2")


def test_a_frozen_glob_applies(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    export_onnx(small(tmp_path), path)
    analysis = lipcompile.check(str(path), ModelOptions(freeze=("dense_2.*",))).analysis
    assert analysis is not None
    assert set(analysis.parameters) == {"dense.weight", "dense.bias"}


def test_an_export_compiles_and_agrees_with_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lipcompile.__main__ import run as command

    path = tmp_path / "m.onnx"
    module = small(tmp_path)
    export_onnx(module, path)
    assert command(["compile", str(path), "-o", str(tmp_path / "again.py")]) == 0
    assert "computes what onnxruntime computes" in capsys.readouterr().err
    space: dict[str, Any] = {"__name__": "again"}
    exec((tmp_path / "again.py").read_text(), space)
    again = space["Model"]()
    assert all(torch.equal(p, dict(again.named_parameters())[name]) for name, p in module.named_parameters())


def test_a_certificate_of_bounds_of_one_graph(tmp_path: Path) -> None:
    """The certificate in the file is that of what is read back, but for its source."""
    derivation = derive(tmp_path, SMALL.replace("; ", "\n"))
    export_onnx(module_of(derivation), tmp_path / "m.onnx")
    analysis = lipcompile.check(str(tmp_path / "m.onnx")).analysis
    assert analysis is not None
    said = json.loads(metadata(tmp_path / "m.onnx")["lipcompile.certificate"])
    again = document(derivation.source, analysis.graph, bounds_of(analysis.graph, Certified()))
    assert {**again, "versions": said["versions"]} == said


def test_a_certificate_that_takes_long_to_write_is_not_tried(tmp_path: Path) -> None:
    """A file that claims a response of a thousand million taps is imported as what it is."""
    path = tmp_path / "m.onnx"
    export_onnx(small(tmp_path, "input x: tensor[2, 3], norm <= 2; lrn(3); flatten; dense(3); loss nll"), path)
    model = onnx.load(path)
    (entry,) = [entry for entry in model.metadata_props if entry.key == "lipcompile.certificate"]
    claimed = json.loads(entry.value)
    claimed["graph"]["nodes"][0]["attributes"]["size"] = 10**9
    entry.value = encode(resealed(claimed)).decode()
    onnx.save(model, path)
    analysis = lipcompile.check(str(path)).analysis
    assert analysis is not None
    assert [node.attributes.size for node in analysis.graph.nodes if node.op.name == "lrn"] == [3]
