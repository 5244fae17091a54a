"""Every trap of the theory, planted in the compiler one at a time: the verifier must find each.

The numbers are those of docs/theory.md. A fault in a rule shows in a certificate, one in the emitter in the
module that carries it. Traps of the runtime stand here in the form in which a compiler can fall into them.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from lipcompile_torch.noise import mechanism as noise
from lipcompile_verify import Verdict, verify
from lipcompile_verify.__main__ import judge

import lipcompile
from lipcompile.analysis import bounds
from lipcompile.certificates import certificate
from lipcompile.core.derivation import Derivation
from lipcompile.core.record import Loss, Op, ParameterRule
from lipcompile.emitters.torch import emit
from lipcompile.emitters.torch.expressions import EXPRESSIONS, LAYERS
from lipcompile.emitters.torch.pieces import Layer
from lipcompile.numbers import certified
from lipcompile.ops import averaging, counting
from lipcompile.ops.pool import rules as pool
from lipcompile.ops.table import LOSS_BY_NAME, OP_BY_NAME

Fault = tuple[Any, str, Any]
IMAGE = "input x: tensor[2, 8, 8], norm <= 1"
VECTOR = "input x: tensor[6], norm <= 1"
END = "dense(3); loss cross_entropy"


@contextmanager
def planted(*faults: Fault) -> Iterator[None]:
    """Give objects other attributes, tables other entries, for a while; records cannot be changed otherwise."""
    before = [(owner, name, _get(owner, name)) for owner, name, _ in faults]
    try:
        for fault in faults:
            _set(*fault)
        counting.count_axis.cache_clear()
        yield
    finally:
        for change in before:
            _set(*change)
        counting.count_axis.cache_clear()


def _get(owner: Any, name: str) -> Any:
    return owner[name] if isinstance(owner, dict) else getattr(owner, name)


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    else:
        object.__setattr__(owner, name, value)


def derived(folder: Path, text: str) -> Derivation:
    """The derivation of a .lip model of these statements."""
    file = folder / "model.lip"
    file.write_text(f"model m {{ {text} }}")
    found = lipcompile.check(str(file))
    assert found.ok, found.diagnostics
    return found


def op(name: str) -> Op[Any]:
    return OP_BY_NAME[name]


def parameter(name: str, role: str) -> ParameterRule[Any]:
    return op(name).parameter(role)


def loss(name: str) -> Loss[Any]:
    return LOSS_BY_NAME[name]


def from_below(axis: Any) -> Fraction:
    """Power iteration stopped early: it comes near the norm from below."""
    return TRUE_GRAM(axis) * Fraction(99, 100)


TRUE_GRAM = averaging.averaging_gram
TRUE_ROUND_UP: Callable[[Any], float] = certified._round_up

# Trap: the step that it harms first, a model, and the faults: the rules of the compiler, each without one thing.
RULES: dict[str, tuple[str, str, list[Fault]]] = {
    "1: a bias counts once in the norm, not at every pixel": (
        "conv2d",
        f"{IMAGE}; conv2d(4, kernel=3, padding=1, bias=1); flatten; {END}",
        [(op("conv"), "norm", lambda num, site, x, theta: theta["weight"] * x[0].norm + theta["bias"])],
    ),
    "1: the gradient of a bias is that of one pixel": (
        "conv2d",
        f"{IMAGE}; conv2d(4, kernel=3, padding=1, bias=1); flatten; {END}",
        [(parameter("conv", "bias"), "kappa", lambda num, site, x, theta: num.of(1))],
    ),
    "2: the factor of a kernel is counted twice": (
        "conv2d",
        f"{IMAGE}; conv2d(4, kernel=3, padding=1); flatten; {END}",
        [(parameter("conv", "weight"), "kappa", lambda num, site, x, theta: x[0].norm)],
    ),
    "3: a kernel is scaled by an average factor": (
        "conv2d",
        f"{IMAGE}; conv2d(4, kernel=3, padding=1); flatten; {END}",
        [(parameter("conv", "weight"), "operator_norm", lambda num, site, constraint: num.of(Fraction(62, 63)))],
    ),
    "4: the norm of a map is found from below": (
        "avg_pool",
        f"{IMAGE}; avg_pool(3, stride=2); dense(4); flatten; {END}",
        [(pool, "averaging_gram", from_below)],
    ),
    "5: a convolution is bounded by the norm of its kernel": (
        "conv2d",
        f"{IMAGE}; conv2d(4, kernel=3, padding=1, constraint=frobenius(1)); flatten; {END}",
        [(parameter("conv", "weight"), "operator_norm", lambda num, site, constraint: num.of(constraint.bound))],
    ),
    "5: biases are missing": (
        "dense",
        f"{VECTOR}; dense(4, bias=1); dense(4); {END}",
        [(op("dense"), "norm", lambda num, site, x, theta: theta["weight"] * x[0].norm)],
    ),
    "8: an activation that does not keep zero": (
        "sigmoid",
        f"{VECTOR}; dense(40); sigmoid; dense(4); {END}",
        [(op("sigmoid"), "norm", lambda num, site, x, theta: x[0].norm / 4)],
    ),
    "10: the cosine loss divided by the square of its floor": (
        "loss",
        f"{VECTOR}; dense(3); loss cosine(floor=2)",
        [(loss("cosine"), "lipschitz", lambda num, loss, shape, logits: 1 / num.of(loss.floor * loss.floor))],
    ),
    "11: of a weight used twice the larger use counts": (
        "dense.weight",
        f"{VECTOR}; repeat 2 {{ dense(6, share=tied); groupsort(2) }}; {END}",
        [(bounds, "_added_up", lambda num, uses, back: num.maximum(*(k * back.bound[n.name] for n, k in uses)))],
    ),
    "12: a gradient clip after the mean over a batch of 64": (
        "dense",
        f"{VECTOR}; dense(4); clip_gradient(0.5); {END}",
        [
            (
                op("clip_gradient"),
                "cotangent",
                lambda num, site, g, gains: [num.minimum(g, num.of(site.attributes.bound / 64))],
            )
        ],
    ),
    "13: log-softmax is taken for 1-Lipschitz": (
        "log_softmax",
        f"{VECTOR}; dense(4); log_softmax; {END}",
        [(op("log_softmax"), "lipschitz", lambda num, site, x, theta: [num.of(1)])],
    ),
    "15: bounds are rounded to the nearest double": (
        "dense",
        "input x: tensor[3], norm <= 1; dense(3); loss absolute_error(reduce=sum)",
        [(certified, "_round_up", lambda number: math.nextafter(TRUE_ROUND_UP(number), 0))],
    ),
    "19: windows with dilation are taken for windows apart": (
        "max_pool",
        f"{IMAGE}; max_pool(2, stride=2, dilation=2); dense(4); flatten; {END}",
        [
            (op("max_pool"), "norm", lambda num, site, x, theta: x[0].norm),
            (op("max_pool"), "lipschitz", lambda num, site, x, theta: [num.of(1)]),
        ],
    ),
    "19: windows that overlap are taken for windows apart": (
        "l2_pool",
        f"{IMAGE}; l2_pool(3, stride=2); dense(4); flatten; {END}",
        [
            (op("l2_pool"), "norm", lambda num, site, x, theta: x[0].norm),
            (op("l2_pool"), "lipschitz", lambda num, site, x, theta: [num.of(1)]),
        ],
    ),
    "20: US = 1 with S < 1, as in Lemma 1": (
        "dense",
        f"{VECTOR}; dense(6, constraint=spectral(2)); hard_sigmoid(slope=0.5, offset=0); {END}",
        [(op("dense"), "norm", lambda num, site, x, theta: x[0].norm)],
    ),
    "21: a norm with a tiny floor is taken for 1-Lipschitz": (
        "rms_norm",
        f"{VECTOR}; dense(6); rms_norm(eps=1e-6); {END}",
        [(op("rms_norm"), "lipschitz", lambda num, site, x, theta: [num.of(1)])],
    ),
    "25: all tokens of a sentence are believed to be different": (
        "embedding",
        f"input x: tokens[8]; embedding(20, 4); flatten; {END}",
        [(parameter("embedding", "table"), "kappa", lambda num, site, x, theta: num.of(1))],
    ),
}


@pytest.mark.parametrize("trap", RULES)
def test_a_fault_in_a_rule_is_found(trap: str, tmp_path: Path) -> None:
    """The certificate of the sound compiler verifies, that of the faulty one does not."""
    harmed, text, faults = RULES[trap]
    assert verify(certificate(derived(tmp_path, text))).ok
    with planted(*faults):
        wrong = certificate(derived(tmp_path, text))
    found = verify(wrong)
    assert not found.ok
    assert found.problems[0].step == harmed
    assert any(word in found.problems[0].reason for word in ("claimed", "not proved"))


def test_trap_18_a_parameter_that_escapes_its_bound_is_found(tmp_path: Path) -> None:
    """A trained parameter without a bound would be trained without noise."""
    true = bounds._gradients

    def forgetful(*arguments: Any) -> Any:
        found = true(*arguments)
        found.popitem()
        return found

    with planted((bounds, "_gradients", forgetful)):
        wrong = certificate(derived(tmp_path, f"{VECTOR}; dense(4); {END}"))
    assert not verify(wrong).ok


# Emitted modules: the trap, the model that it harms, and the faults of the emitter


def edited(function: str, old: str, new: str) -> list[Fault]:
    """The emitter writes `new` for `old` in what one of its functions returns."""
    true = getattr(emit, function)

    def wrong(*arguments: Any) -> list[str]:
        text = "\n".join(true(*arguments))
        assert old in text, text
        return text.replace(old, new).split("\n")

    return [(emit, function, wrong)]


CRITERION = """\
def criterion(self, output: Tensor, target: Tensor) -> Tensor:
    return self.per_example_loss(output, target).sum() / len(output)"""
EMISSIONS: dict[str, tuple[str, list[Fault]]] = {
    "6: the loss is divided by the number of examples that came": (
        f"{VECTOR}; dense(4); {END}",
        edited(
            "_loss",
            "def per_example_loss",
            f"{CRITERION}\n\ndef per_example_loss",
        ),
    ),
    "9: an epsilon below the root of an L2 pool": (
        f"{IMAGE}; l2_pool(2); dense(4); flatten; {END}",
        [(EXPRESSIONS, "l2_pool", lambda node, x: f"functional.l2_pool({x[0]}, (2, 2), eps=1e-6)")],
    ),
    "14: the data's mean and deviation stand in the model": (
        f"{IMAGE}; dense(4); flatten; {END}",
        edited("_forward", "x = self.clip_input(x)", "x = self.clip_input((x - 0.1307) / 0.3081)"),
    ),
    "15: the radius of the input is rounded up": (
        "input x: tensor[3], norm <= 0.1; dense(4); dense(3); loss cross_entropy",
        [(emit, "below", lambda value: repr(math.nextafter(float(value), 1)))],
    ),
    "15: the bounds in the module are rounded down": (
        f"{VECTOR}; dense(4); {END}",
        [(emit, "_number", lambda value: repr(math.nextafter(value, 0)))],
    ),
    "16: a mean is taken over the batch": (
        f"{IMAGE}; center(axes=(0, 1, 2)); dense(4); flatten; {END}",
        [(EXPRESSIONS, "center", lambda node, x: f"functional.center({x[0]}, (-1, 0, 1, 2))")],
    ),
    "17: the loss weighs classes that its bound did not": (
        f"{VECTOR}; dense(4); {END}",
        edited("_loss", "class_weights=()", "class_weights=(1.0, 2.0, 3.0)"),
    ),
    "18: a layer that nothing bounds": (
        f"{VECTOR}; dense(4); {END}",
        edited(
            "_constructor",
            "self.project_()",
            "self.extra = layers.Dense(6, 6, constraint=Spectral(1.0))\n    self.project_()",
        ),
    ),
    "18: a parameter that is frozen is trained": (
        f"{VECTOR}; frozen {{ dense(4) }}; {END}",
        edited("_constructor", "\n    self.dense.weight.requires_grad_(False)", ""),
    ),
    "19: the projection of a kernel counts too few windows": (
        f"{IMAGE}; conv2d(4, kernel=3, padding=1); flatten; {END}",
        edited("_constructor", "reads=9, taps=9", "reads=1, taps=1"),
    ),
    "21: the input is not clipped": (
        f"{VECTOR}; dense(4); {END}",
        edited("_forward", "x = self.clip_input(x)", "x = x / x.norm(dim=1, keepdim=True)"),
    ),
    "22: products in half precision": (
        f"{VECTOR}; dense(4); {END}",
        edited("_forward", "self.clip_input(x)", "self.clip_input(x).bfloat16()"),
    ),
    "24: the first weights are not projected": (
        f"{VECTOR}; dense(4); {END}",
        edited("_constructor", "self.project_()", "pass"),
    ),
    "25: gradients of an embedding are scaled by how often tokens occur": (
        f"input x: tokens[8]; embedding(20, 4); flatten; {END}",
        [
            (
                LAYERS,
                "embedding",
                Layer(lambda node: "Embedding", lambda node, p: ["20", "4", "bound=1.0", "by_frequency=True"]),
            )
        ],
    ),
}


def judged(folder: Path, text: str) -> Verdict:
    """The verdict on the module that a model becomes, with the certificate that it carries."""
    file = folder / "module.py"
    file.write_text(emit.emit(derived(folder, text)))
    return judge(Namespace(certificate=file, module=file, model=None))


@pytest.mark.parametrize("trap", EMISSIONS)
def test_a_fault_of_the_emitter_is_found(trap: str, tmp_path: Path) -> None:
    """The module of the sound emitter is that of its certificate, that of the faulty one is not."""
    text, faults = EMISSIONS[trap]
    assert judged(tmp_path, text).ok
    with planted(*faults):
        found = judged(tmp_path, text)
    assert not found.ok


# Planned training. Trap 26, that N is public, is a sentence of the documentation: no number shows it.


def planned(folder: Path, **changes: Any) -> Verdict:
    """The verdict on a certificate whose noise is what the runtime gives each parameter, for a multiplier of 1."""
    derivation = derived(folder, f"{VECTOR}; dense(4); groupsort(2); {END}")
    analysis = derivation.analysis
    assert analysis is not None
    limits = {name: bound.value or 0.0 for name, bound in analysis.parameters.items()}
    sizes = {name: math.prod(analysis.graph.parameters[name].shape) for name in limits}
    plan = {
        "neighbours": "add_remove",
        "sampling": "poisson",
        "batch": 64,
        "dataset": 1000,
        "steps": 100,
        "noise": "per_layer",
        "epsilon": None,
        "delta": "1/100000",
        "accountant": "pld",
        "noise_multiplier": (1.0).hex(),
        "std": {name: std.hex() for name, std in noise.allocate("per_layer", limits, sizes, 1.0).items()},
    }
    return verify(certificate(derivation, plan | changes))


def test_trap_07_a_step_of_k_layers_is_one_mechanism(tmp_path: Path) -> None:
    """s_p = σ·K_p for two parameters has the multiplier σ/√2."""
    assert planned(tmp_path).ok
    alone: Fault = (noise, "_shares", lambda allocation, limits, sizes: limits)
    with planted(alone, (noise, "effective_multiplier", lambda limits, stds: 1 + 1e-10)):
        found = planned(tmp_path)
    assert found.problems[0].step == "training"
    assert "0.707" in found.problems[0].reason


def test_trap_23_a_parameter_without_noise_is_found(tmp_path: Path) -> None:
    """Parameters that get no gradient in a step get their noise all the same."""
    true = noise.allocate

    def forgetful(*arguments: Any) -> dict[str, float]:
        return dict(list(true(*arguments).items())[1:])

    with planted((noise, "allocate", forgetful)):
        assert not planned(tmp_path).ok


def test_trap_06_a_sampling_that_no_theorem_covers_is_found(tmp_path: Path) -> None:
    """Batches cut from a shuffled set by number, under add/remove; and batches that are larger than the set."""
    assert not planned(tmp_path, sampling="shuffle").ok
    assert not planned(tmp_path, batch=2000).ok
