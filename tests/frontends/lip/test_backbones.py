"""`frozen { onnx("FILE") }`: what is computed, what it costs, where files may lie, what the digest covers."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from lipcompile.core.derivation import Derivation
from lipcompile.diagnostics import InputError
from lipcompile.emitters.torch.emit import emit
from lipcompile.frontends.options import ModelOptions
from lipcompile.limits import parse_limits
from lipcompile.pipeline import check
from tests.emitters.test_emit import assert_within_bounds
from tests.frontends.onnx.onnx_models import floats, model, node, save

HEAD = "clip_norm(1) } dense(3, constraint=spectral(4)) loss cross_entropy"
IMAGES = 'input x: tensor[2, 6, 6], norm <= 9\n frozen { onnx("body.onnx") flatten'


def body(seed: int = 0, shape: tuple[int | str, ...] = ("n", 2, 6, 6)) -> onnx.ModelProto:
    """A convolution, ReLU, and a second use of its weights."""
    nodes = [
        node("Conv", "x w b", "h", pads=[1, 1, 1, 1]),
        node("Relu", "h", "r"),
        node("Conv", "r w b", "g", pads=[1, 1, 1, 1]),
        node("Add", "g r", "y"),
    ]
    return model(nodes, shape, {"w": floats(2, 2, 3, 3, seed=seed, scale=2.0), "b": floats(2, seed=seed + 1)})


def written(folder: Path, text: str = f"{IMAGES} {HEAD}", name: str = "model.lip") -> str:
    path = folder / name
    path.write_text(text if "model " in text else f"model net {{ {text} }}")
    return str(path)


def module_of(derivation: Derivation) -> Any:
    assert derivation.ok, derivation.diagnostics
    space: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(emit(derivation), "emitted.py", "exec"), space)
    return space["Model"]()


def test_it_computes_what_the_file_computes(tmp_path: Path) -> None:
    path = save(body(), tmp_path, "body.onnx")
    network = module_of(check(written(tmp_path)))
    x = 0.5 * torch.randn(5, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    (expected,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": x.numpy()})
    flat = torch.from_numpy(np.asarray(expected)).flatten(1)
    found = network.frozen_features(x)
    torch.testing.assert_close(found, flat / flat.norm(dim=1, keepdim=True), rtol=1e-4, atol=1e-5)
    whole = network(x)
    with network.on_features():
        torch.testing.assert_close(network(found), whole)


def test_it_costs_nothing_and_is_not_trained(tmp_path: Path) -> None:
    save(body(), tmp_path, "body.onnx")
    derivation = check(written(tmp_path))
    network = module_of(derivation).double()
    assert derivation.analysis is not None
    assert set(network.bounds) == {"dense.weight"}
    assert network.bounds["dense.weight"] == network.loss_lipschitz
    before = {name: p.clone() for name, p in network.named_parameters() if name != "dense.weight"}
    assert_within_bounds(network, "cross_entropy")
    network.project_()
    for name, value in before.items():
        assert not network.get_parameter(name).requires_grad
        assert torch.equal(network.get_parameter(name), value)


def test_two_uses_of_a_file_have_one_set_of_weights(tmp_path: Path) -> None:
    save(body(), tmp_path, "body.onnx")
    twice = written(tmp_path, f'{IMAGES.replace(" flatten", "")} onnx("body.onnx") flatten {HEAD}')
    derivation = check(twice)
    assert derivation.analysis is not None
    assert len(derivation.analysis.graph.parameters) == len(module_of(check(written(tmp_path))).bounds) + 2
    module_of(derivation)


def test_the_digest_covers_the_file(tmp_path: Path) -> None:
    save(body(0), tmp_path, "body.onnx")
    path = written(tmp_path)
    first = check(path).source.sha256
    assert check(path).source.sha256 == first
    save(body(5), tmp_path, "body.onnx")
    assert check(path).source.sha256 != first


def test_the_digest_tells_which_file_is_which(tmp_path: Path) -> None:
    """The same files in each other's places are another network."""
    path = written(tmp_path, f'{IMAGES.replace(" flatten", "")} onnx("second.onnx") flatten {HEAD}')
    digests = set()
    for seeds in ((0, 5), (5, 0)):
        for name, seed in zip(("body.onnx", "second.onnx"), seeds, strict=True):
            save(body(seed), tmp_path, name)
        digests.add(check(path).source.sha256)
    assert len(digests) == 2


def test_a_file_of_a_block_lies_beside_the_block(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    save(body(), tmp_path / "parts", "body.onnx")
    (tmp_path / "parts" / "b.lip").write_text('block features() { frozen { onnx("body.onnx") flatten } }')
    text = (
        f'import "parts/b.lip"\nmodel net {{ input x: tensor[2, 6, 6], norm <= 9\n features() frozen {{ {HEAD} }}'
    )
    assert check(written(tmp_path, text)).ok


def first_code(path: str, options: ModelOptions | None = None) -> str:
    try:
        return check(path, options).diagnostics[0].code
    except InputError as error:
        return error.diagnostics[0].code


REFUSED = {
    'onnx("body.onnx") flatten dense(3)': "LIP012",
    "frozen { onnx(body) flatten } dense(3)": "LIP012",
    "frozen { onnx() flatten } dense(3)": "LIP012",
    'frozen { onnx("body.onnx", 2) flatten } dense(3)': "LIP012",
    'frozen { onnx("missing.onnx") flatten } dense(3)': "LIP015",
    'frozen { onnx("../outside.onnx") flatten } dense(3)': "LIP015",
    'frozen { onnx("link.onnx") flatten } dense(3)': "LIP015",
    'frozen { onnx("/etc/hostname") flatten } dense(3)': "LIP015",
    'frozen { onnx("broken.onnx") flatten } dense(3)': "LIP002",
    'frozen { onnx("folder") flatten } dense(3)': "LIP015",
    'frozen { slice(0, 0, 1) onnx("body.onnx") flatten } dense(3)': "LIP106",
    'frozen { onnx("refused.onnx") flatten } dense(3)': "LIP100",
}


@pytest.mark.parametrize("layers", REFUSED)
def test_refusals(tmp_path: Path, layers: str) -> None:
    folder = tmp_path / "project"
    (folder / "folder").mkdir(parents=True)
    save(body(), folder, "body.onnx")
    save(body(), tmp_path, "outside.onnx")
    (folder / "link.onnx").symlink_to(tmp_path / "outside.onnx")
    (folder / "broken.onnx").write_bytes(b"not a model")
    save(model([node("NonZero", "x", "y")], ("n", 2, 6, 6)), folder, "refused.onnx")
    path = written(folder, f"input x: tensor[2, 6, 6], norm <= 9\n {layers} loss cross_entropy")
    assert first_code(path) == REFUSED[layers]


def test_an_open_repetition_refuses_it(tmp_path: Path) -> None:
    save(body(), tmp_path, "body.onnx")
    text = f"""model net {{ param depth: int  input x: tensor[2, 6, 6], norm <= 9
        repeat depth {{ frozen {{ onnx("body.onnx") }} }} flatten frozen {{ {HEAD} }}"""
    assert first_code(written(tmp_path, text)) == "LIP014"


def test_limits_hold_for_what_is_imported(tmp_path: Path) -> None:
    save(body(), tmp_path, "body.onnx")
    path = written(tmp_path)
    assert first_code(path, ModelOptions(limits=parse_limits(["file-size=200"]))) == "LIP018"
    assert first_code(path, ModelOptions(limits=parse_limits(["nodes=6"]))) == "LIP018"


def test_a_body_frozen_by_name_has_features(tmp_path: Path) -> None:
    """The other way: one file with body and head, the body frozen by a glob."""
    weights = {"body.weight": floats(6, 4), "body.bias": floats(6), "head.weight": floats(3, 6)}
    nodes = [
        node("Gemm", "x body.weight body.bias", "h", transB=1),
        node("Relu", "h", "r"),
        node("Gemm", "r head.weight", "y", transB=1),
    ]
    path = save(model(nodes, ("n", 4), weights), tmp_path)
    options = ModelOptions(input_norm=Fraction(1), loss="cross_entropy", constraint="keep", freeze=("body.*",))
    derivation = check(str(path), options)
    network = module_of(derivation)
    assert set(network.bounds) == {"head.weight"}
    assert derivation.requirements.lipschitz_layers.detail.endswith("no sensitivity: body, Relu_r")
    x = torch.nn.functional.normalize(torch.rand(5, 4))
    hidden = torch.relu(x @ torch.from_numpy(weights["body.weight"]).T + torch.from_numpy(weights["body.bias"]))
    torch.testing.assert_close(network.frozen_features(x), hidden, rtol=1e-4, atol=1e-5)


def test_the_digest_covers_weights_in_other_files(tmp_path: Path) -> None:
    digests = []
    for seed in (0, 5):
        onnx.save(
            body(seed),
            str(tmp_path / "body.onnx"),
            save_as_external_data=True,
            location="w.data",
            size_threshold=0,
        )
        digests.append((check(written(tmp_path)).source.sha256, (tmp_path / "body.onnx").read_bytes()))
        (tmp_path / "w.data").unlink()
    assert digests[0][1] == digests[1][1]
    assert digests[0][0] != digests[1][0]
