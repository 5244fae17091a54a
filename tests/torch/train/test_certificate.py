"""Training begins only if the module's certificate verifies, and covers what the noise rests on."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import lipcompile_verify
import pytest
import torch
from lipcompile_torch import Ball, Frobenius, PrivacyEngine, Spectral, layers
from lipcompile_torch.train import certificate
from lipcompile_torch.train.certificate import CertificateError, UncertifiedWarning, check_certificate
from lipcompile_torch.train.checkpoint import CheckpointError, read_checkpoint, restore, save_checkpoint
from lipcompile_torch.train.checks import PrivacyError
from lipcompile_torch.train.module import LipschitzModule
from torch.utils.data import DataLoader, TensorDataset

from lipcompile.core.backend import program
from lipcompile.emitters.torch.emit import emit
from lipcompile.frontends.options import ModelOptions
from lipcompile.pipeline import check

counter = itertools.count()
SCHEMA = json.loads(files("lipcompile.reports").joinpath("certificate.schema.json").read_text(encoding="utf-8"))
BODY = """
model net {
    input x: tensor[1, 4, 4], norm <= 1
    conv2d(2, kernel=3, padding=1, bias=0.5)
    groupsort(2)
    flatten
    clip_gradient(0.5)
    dense(3, constraint=spectral(2), bias=0.25)
    loss cross_entropy(temperature=3)
}
"""


def built(
    folder: Path, follow_weights: bool = False, freeze: tuple[str, ...] = (), body: str = BODY
) -> type[LipschitzModule]:
    """Compile a model, and return the class that the file defines: a new one at each call."""
    path = folder / f"m{next(counter)}.lip"
    path.write_text(body, encoding="utf-8")
    file = path.with_suffix(".py")
    text = emit(check(str(path), ModelOptions(freeze=freeze)), follow_weights)
    model: type[LipschitzModule] = program(file, text).Model
    return model


def private(module: LipschitzModule) -> None:
    """Make training private, without a step."""
    data = TensorDataset(torch.zeros(8, 1, 4, 4), torch.zeros(8, dtype=torch.long))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    PrivacyEngine("rdp").make_private(
        module=module, optimizer=optimizer, data_loader=DataLoader(data, batch_size=4), noise_multiplier=1.0
    )


def test_a_compiled_module_trains(tmp_path: Path) -> None:
    for follow in (False, True):
        private(built(tmp_path, follow_weights=follow)())


def test_one_document_is_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = built(tmp_path), []

    def counted(document: Any) -> Any:
        calls.append(1)
        return lipcompile_verify.verify(document)

    monkeypatch.setattr(certificate, "verify", counted)
    certificate._verdict.cache_clear()
    for _ in range(3):
        private(model())
    assert len(calls) == 1


# Certificates that prove less than they claim


def smaller(document: dict[str, Any], *path: str | int) -> None:
    """Make a bound five per cent smaller."""
    *way, last = path
    place: Any = document
    for key in way:
        place = place[key]
    place[last] = (0.95 * float.fromhex(place[last])).hex()


BOUNDS = [
    (("steps", "forward", 0, "norm"), "conv"),
    (("steps", "forward", 0, "kappa", "weight"), "conv"),
    (("steps", "forward", 4, "lipschitz", 0), "dense"),
    (("steps", "loss", "lipschitz"), "cross_entropy"),
    (("steps", "backward", 0, "cotangent"), "dense"),
    (("steps", "parameters", 0, "gradient"), "conv"),
    (("totals", "gradient"), "gradient"),
    (("totals", "lipschitz"), "lipschitz"),
]


@pytest.mark.parametrize(("path", "named"), BOUNDS)
def test_a_smaller_bound_in_the_certificate_is_refused(
    path: tuple[str | int, ...], named: str, tmp_path: Path
) -> None:
    model = built(tmp_path)
    document = copy.deepcopy(dict(model.certificate))
    smaller(document, *path)
    model.certificate = document
    with pytest.raises(CertificateError, match=f"does not verify: .*{named}.*compile the model again"):
        private(model())


def test_a_larger_domain_in_the_graph_is_refused(tmp_path: Path) -> None:
    model = built(tmp_path)
    document = copy.deepcopy(dict(model.certificate))
    document["graph"]["input"]["norm"] = "2"
    model.certificate = document
    with pytest.raises(CertificateError, match="the graph has the hash"):
        private(model())


@pytest.mark.parametrize(
    "document", [{"schema": "x"}, {"schema": "lipcompile.certificate/1", "graph": 3}, {1: {2}}]
)
def test_what_is_no_certificate_is_refused(document: Any, tmp_path: Path) -> None:
    model = built(tmp_path)
    model.certificate = document
    with pytest.raises(CertificateError, match="compile the model again"):
        private(model())


# Modules that are not those of their certificate


def lowered(model: type[LipschitzModule], attribute: str, share: float) -> None:
    """Scale a bound, or all bounds, of the class."""
    given = getattr(model, attribute)
    changed = {name: share * bound for name, bound in given.items()} if isinstance(given, dict) else share * given
    setattr(model, attribute, changed)


@pytest.mark.parametrize(
    ("attribute", "share", "said"),
    [
        ("bounds", 0.99, "the bound of conv2d.weight is"),
        ("unclipped_bounds", 0.99, "the unclipped bound of conv2d.weight is"),
        ("loss_lipschitz", 0.99, "loss_lipschitz is"),
        # C/L of an unclipped bound is what a clip of the loss's gradient leaves: L must not be larger alone.
        ("loss_lipschitz", 1.01, "the unclipped bound of conv2d.weight is"),
        ("lipschitz", 0.99, "lipschitz is"),
        ("input_norm", 1.01, "input_norm is 1.01, certified 1"),
    ],
)
def test_bounds_that_are_not_certified_are_refused(
    attribute: str, share: float, said: str, tmp_path: Path
) -> None:
    model = built(tmp_path)
    lowered(model, attribute, share)
    with pytest.raises(CertificateError, match=said):
        private(model())


def test_larger_bounds_are_accepted(tmp_path: Path) -> None:
    model = built(tmp_path)
    for attribute in ("bounds", "unclipped_bounds", "lipschitz"):
        lowered(model, attribute, 1.5)
    lowered(model, "input_norm", 0.5)
    private(model())


def trusting(module: Any) -> None:
    type(module).input_trusted = True


def wider(module: Any) -> None:
    module.dense = layers.Dense(32, 3, bias=0.25, constraint=Spectral(2.5))


def longer_bias(module: Any) -> None:
    module.dense = layers.Dense(32, 3, bias=Ball(0.5), constraint=Spectral(2))


def another_norm(module: Any) -> None:
    module.dense = layers.Dense(32, 3, bias=0.25, constraint=Frobenius(2))


def another_shape(module: Any) -> None:
    module.dense = layers.Dense(32, 4, bias=0.25, constraint=Spectral(2))


def another_name(module: Any) -> None:
    module.head = layers.Dense(32, 3, bias=0.25, constraint=Spectral(2))
    del module.dense


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (trusting, "input_trusted is set"),
        (wider, "dense.weight may have norm 2.5, certified 2"),
        (longer_bias, "dense.bias may have norm 0.5, certified 1/4"),
        (another_norm, "dense.weight is kept by Frobenius"),
        (another_shape, r"dense.weight has shape \[4, 32\]"),
        (another_name, "its parameters differ in dense.bias, dense.weight, head.bias, head.weight"),
    ],
)
def test_another_module_is_refused(change: Callable[[Any], None], said: str, tmp_path: Path) -> None:
    module = built(tmp_path)()
    change(module)
    with pytest.raises(CertificateError, match=said):
        check_certificate(module)


CLIPPED = """
model net {
    input x: tensor[1, 4, 4], norm <= 1
    flatten
    dense(3, clip=RULE)
    loss cross_entropy
}
"""


@pytest.mark.parametrize("rule", ["automatic", "0.5"])
def test_another_rule_of_a_clip_is_refused(rule: str, tmp_path: Path) -> None:
    """Both keep to C, but training is another one, and a length may be moved where there is one."""
    model: Any = built(tmp_path, body=CLIPPED.replace("RULE", rule))
    (group,) = model.clips
    private(model())
    for regulariser in {None, 0.01, 0.02} - {group.regulariser}:
        model.clips = [dataclasses.replace(group, regulariser=regulariser)]
        with pytest.raises(CertificateError, match=f"has {'a fixed' if regulariser is None else 'the automatic'}"):
            check_certificate(model())
    model.clips = [dataclasses.replace(group, length=group.length / 2)]
    private(model())


# Code that is not that of the emitted class


def overridden(model: Any) -> Any:
    class Louder(model):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 100 * x

    return Louder()


def patched(model: Any) -> Any:
    model.gradient_bounds = lambda self: dict.fromkeys(self.bounds, 1e-9)
    return model()


def hidden(name: str) -> Callable[[Any], Any]:
    def change(model: Any) -> Any:
        module = model()
        *way, last = name.split(".")
        setattr(module.get_submodule(".".join(way)), last, lambda *_: dict.fromkeys(module.bounds, 1e-9))
        return module

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (overridden, "its class Louder is a subclass of the certified class"),
        (patched, "gradient_bounds of Net was replaced after the class was defined"),
        (hidden("gradient_bounds"), "gradient_bounds of the module overrides"),
        (hidden("per_example_loss"), "per_example_loss of the module overrides"),
        (hidden("clip_input"), "clip_input of the module overrides"),
        (hidden("project_"), "project_ of the module overrides"),
        (hidden("conv2d.forward"), "forward of conv2d overrides"),
        (hidden("conv2d.project_"), "project_ of conv2d overrides"),
    ],
)
def test_other_code_is_refused(change: Callable[[Any], Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=said):
        private(change(built(tmp_path)))


def test_a_layer_with_another_window_is_refused(tmp_path: Path) -> None:
    module: Any = built(tmp_path)()
    module.conv2d.operator = dataclasses.replace(module.conv2d.operator, padding=((2, 0), (0, 2)))
    with pytest.raises(RuntimeError, match="layers conv2d were replaced after compilation"):
        private(module)


def test_bounds_that_shrink_after_the_check_stop_the_step(tmp_path: Path) -> None:
    model = built(tmp_path)
    module = model()
    data = TensorDataset(torch.zeros(4, 1, 4, 4), torch.zeros(4, dtype=torch.long))
    module, optimizer, loader = PrivacyEngine("rdp").make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=4),
        noise_multiplier=1.0,
    )
    images, labels = next(iter(loader))
    module.criterion(module(images), labels).backward()  # type: ignore[no-untyped-call]
    lowered(model, "bounds", 0.9)
    with pytest.raises(PrivacyError, match="bounds, domain or methods were changed"):
        optimizer.step()


def test_a_certified_frozen_parameter_must_not_be_trained(tmp_path: Path) -> None:
    module = built(tmp_path, freeze=("conv2d.*",))()
    for parameter in module.parameters():
        parameter.requires_grad_(True)
    with pytest.raises(CertificateError, match=r"conv2d\.weight is trained, certified as frozen"):
        check_certificate(module)


# Modules without a certificate


def test_without_a_certificate_a_warning_says_so(tmp_path: Path) -> None:
    model = built(tmp_path)
    model.certificate = {}
    with pytest.warns(UncertifiedWarning, match="has no certificate: its gradient bounds are not checked"):
        private(model())


def test_user_ops_are_said_to_be_unchecked_and_their_bounds_are_compared(tmp_path: Path) -> None:
    model = built(tmp_path)
    document = copy.deepcopy(dict(model.certificate))
    document["graph"]["nodes"][1]["op"] = "soft_sort"
    document["user_ops"] = ["soft_sort"]
    model.certificate = document
    with pytest.warns(UncertifiedWarning, match="uses rules for soft_sort that the verifier does not know"):
        check_certificate(model())
    lowered(model, "bounds", 0.9)
    with pytest.warns(UncertifiedWarning), pytest.raises(CertificateError, match="the bound of"):
        check_certificate(model())


@pytest.mark.parametrize("op", ["groupsort", "soft_sort"])
def test_ops_that_are_only_said_to_be_of_users_change_nothing(op: str, tmp_path: Path) -> None:
    """Else every certificate could be excused by a word: `groupsort` has a rule, and no node is a `soft_sort`."""
    model = built(tmp_path)
    document = copy.deepcopy(dict(model.certificate))
    document["user_ops"] = [op]
    smaller(document, "steps", "parameters", 0, "gradient")
    model.certificate = document
    with pytest.raises(CertificateError, match="does not verify"):
        check_certificate(model())


# Checkpoints


class Session:
    """A private training of a module, and its checkpoint."""

    def __init__(self, module: LipschitzModule, folder: Path, **how: Any) -> None:
        data = TensorDataset(torch.rand(40, 1, 4, 4), torch.arange(40) % 3)
        self.module, self.path = module, folder / "checkpoint.pt"
        self.engine = PrivacyEngine("rdp", ledger=folder / "ledger.jsonl")
        _, self.optimizer, self.loader = self.engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=20),
            noise_multiplier=1.5,
            **how,
        )
        self.ledger = self.engine.open_ledger(40)

    def epoch(self) -> None:
        for x, y in self.loader:
            self.optimizer.zero_grad()
            self.module.criterion(self.module(x), y).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def save(self) -> dict[str, Any]:
        save_checkpoint(self.path, self.module, self.optimizer, self.ledger)
        carried = read_checkpoint(self.path).certificate
        assert carried is not None
        return carried

    def load(self) -> None:
        restore(read_checkpoint(self.path), self.module, self.optimizer, self.ledger)


@pytest.mark.parametrize("noise", ["global", "per_layer", "optimal", {"*": 1.0, "dense.weight": 3.0}])
def test_a_checkpoint_says_how_it_was_trained(noise: Any, tmp_path: Path) -> None:
    """With the bounds in the certificate, the noise of the run has at least the multiplier of the ledger."""
    session = Session(built(tmp_path)(), tmp_path, noise=noise)
    session.epoch()
    carried = session.save()
    plan = carried["training"]
    assert (plan["steps"], plan["batch"], plan["dataset"], plan["sampling"]) == (2, 20, 40, "poisson")
    assert plan["noise"] == (noise if isinstance(noise, str) else "weights")
    bounds = {claim["name"]: float.fromhex(claim["gradient"]) for claim in carried["steps"]["parameters"]}
    ratios = [bounds[name] / float.fromhex(std) for name, std in plan["std"].items()]
    assert 1 / math.hypot(*ratios) == pytest.approx(1.5, rel=1e-9)
    jsonschema.Draft202012Validator(SCHEMA).validate(carried)
    assert float.fromhex(plan["noise_multiplier"]) == 1.5
    assert lipcompile_verify.verify(carried).ok
    plan["std"]["dense.weight"] = (0.9 * float.fromhex(plan["std"]["dense.weight"])).hex()
    assert not lipcompile_verify.verify(carried).ok


@pytest.mark.parametrize(("follow", "how"), [(True, {}), (False, {"loss_clip": 0.1})])
def test_noise_that_follows_weights_or_a_clip_is_not_stated(follow: bool, how: Any, tmp_path: Path) -> None:
    session = Session(built(tmp_path, follow_weights=follow)(), tmp_path, **how)
    carried = session.save()
    assert "std" not in carried["training"]
    assert carried["training"]["steps"] is None
    assert lipcompile_verify.verify(carried).ok


def test_a_checkpoint_is_resumed_by_the_same_graph_alone(tmp_path: Path) -> None:
    session = Session(built(tmp_path)(), tmp_path)
    session.epoch()
    session.save()
    session.engine.close()
    again = built(tmp_path)
    again.certificate = {**again.certificate, "versions": {"lipcompile": "9"}}  # another compiler, the same graph
    resumed = Session(again(), tmp_path)
    resumed.load()
    resumed.engine.close()
    other = built(tmp_path, body=BODY.replace("temperature=3", "temperature=2"))
    with pytest.raises(CheckpointError, match="to another model: the graphs in the two certificates differ"):
        Session(other(), tmp_path).load()


def test_a_checkpoint_whose_certificate_does_not_verify_is_refused(tmp_path: Path) -> None:
    session = Session(built(tmp_path)(), tmp_path)
    session.save()
    content = torch.load(session.path, weights_only=True)
    content["certificate"]["training"]["noise_multiplier"] = (1.6).hex()
    torch.save(content, session.path)
    with pytest.raises(CheckpointError, match=r"the checkpoint's certificate does not verify: training \(noise\)"):
        session.load()


def test_an_l_that_is_too_large_in_both_does_not_lessen_the_noise_under_a_clip(tmp_path: Path) -> None:
    """The bound under a clip of the loss to C is C/L of that without clips: with 100 times the L, a hundredth."""
    model = built(tmp_path)
    document = copy.deepcopy(model.certificate)
    loss = 100 * float.fromhex(document["steps"]["loss"]["lipschitz"])
    document["steps"]["loss"]["lipschitz"] = loss.hex()
    model.certificate, model.loss_lipschitz = document, loss
    with pytest.raises(CertificateError, match="the gradient without clips"):
        private(model())


FROZEN = """
model net {
    input x: tensor[1, 4, 4], norm <= 1
    frozen { flatten; dense(4); tanh }
    dense(3)
    loss multiclass_hinge
}
"""


def test_bounds_are_proved_at_the_norm_that_features_are_clipped_to(tmp_path: Path) -> None:
    """Of a linear layer on features of norm X the bound is L·X: 8 times as much for 8 times the norm.

    With bounds that grow as well, the module claims no more than it can keep.
    """
    model = built(tmp_path, body=FROZEN)
    norm = model.features_norm
    private(model())
    model.features_norm = 0.5 * norm
    private(model())
    for wrong in (8 * norm, norm * (1 + 1e-9), math.inf, math.nan, 0.0, -norm):
        model.features_norm = wrong
        with pytest.raises(CertificateError, match="features_norm is"):
            private(model())
    model.features_norm = 8 * norm
    model.bounds = {name: 8.001 * bound for name, bound in model.bounds.items()}
    model.unclipped_bounds = model.bounds
    private(model())
    model.features_shape = (5,)
    with pytest.raises(CertificateError, match="features_shape is"):
        private(model())


def test_a_loose_certificate_does_not_hide_features_that_are_too_long(tmp_path: Path) -> None:
    """The certificate may claim that features are longer than they are, and bounds stay: no step is false."""
    model = built(tmp_path, body=FROZEN)
    document = copy.deepcopy(model.certificate)
    for step in document["steps"]["forward"]:
        step["norm"] = (100 * float.fromhex(step["norm"])).hex()
    assert lipcompile_verify.verify(document).ok
    model.certificate, model.features_norm = document, 99.0
    with pytest.raises(CertificateError, match="features_norm is"):
        private(model())


def test_chance_ends_the_frozen_part(tmp_path: Path) -> None:
    """Chance and trained parameters end the frozen part, as the compiler has it."""
    body = FROZEN.replace("tanh }", "tanh } dropout(0.5); frozen { dense(4) }")
    model = built(tmp_path, body=body)
    assert model.features_shape == (4,)
    private(model())
