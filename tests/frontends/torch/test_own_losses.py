"""Losses of torch are known by themselves; any other function is a loss of one example where all is clipped."""

from __future__ import annotations

import copy
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.nn.own_losses import MixingWarning, OneByOneWarning
from lipcompile_torch.train.checks import PrivacyError
from lipcompile_verify import verify
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import lipcompile
from lipcompile import InputError
from lipcompile.__main__ import run
from lipcompile.frontends.torch.outputs import joined
from lipcompile.ops.loss.torch_read import loss_text
from tests.torch.clip_nets import clipped, whole


def focal(output: Tensor, target: Tensor) -> Tensor:
    """-(1 - p_y)²·log p_y, [B]."""
    log_p = F.log_softmax(output, 1).gather(1, target[:, None]).squeeze(1)
    return -((1 - log_p.exp()) ** 2) * log_p


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(6) % 3


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (nn.CrossEntropyLoss(), "cross_entropy"),
        (nn.CrossEntropyLoss(label_smoothing=0.25), "cross_entropy:label_smoothing=0.25"),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.5, 4.0])), "cross_entropy:class_weights=(1.0,0.5,4.0)"),
        (nn.NLLLoss(), "nll"),
        (nn.BCEWithLogitsLoss(), "multilabel_bce:reduce=mean"),
        (nn.BCEWithLogitsLoss(reduction="sum"), "multilabel_bce:reduce=sum"),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0])), None),
        (nn.MSELoss(), "mean_squared_error"),
        (nn.MSELoss(reduction="sum"), None),
        (nn.L1Loss(reduction="none"), "absolute_error:reduce=mean"),
        (nn.HuberLoss(delta=0.5), "huber:delta=0.5,reduce=mean"),
        (nn.SmoothL1Loss(beta=2.0), "smooth_l1:beta=2.0,reduce=mean"),
        (nn.MultiMarginLoss(margin=0.5), "multi_margin:margin=0.5,p=1"),
        (nn.CosineEmbeddingLoss(), None),
        (F.cross_entropy, "cross_entropy"),
        (F.mse_loss, "mean_squared_error"),
        (F.kl_div, None),
        (focal, None),
    ],
)
def test_losses_of_torch_have_names(loss: Any, text: str | None) -> None:
    assert loss_text(loss) == text


class Tripled(nn.MSELoss):
    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002  (the name of torch)
        return 3 * super().forward(input, target)


def with_hook(loss: nn.Module) -> nn.Module:
    loss.register_forward_hook(lambda _module, _given, found: 3 * found)
    return loss


def patched(loss: nn.Module) -> nn.Module:
    loss.forward = lambda output, target: 3 * F.mse_loss(output, target)
    return loss


@pytest.mark.parametrize("loss", [Tripled(), with_hook(nn.MSELoss()), patched(nn.MSELoss())])
def test_a_loss_of_torch_that_was_changed_is_a_function(loss: nn.Module) -> None:
    module = private(loss)
    output, target = module(X), X[:, :3]
    by_hand = 3 * (output - target).square().mean(1)
    torch.testing.assert_close(module.per_example_loss(output, target), by_hand)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "outputs", "targets"),
    [
        (nn.CrossEntropyLoss(label_smoothing=0.25), 3, Y),
        (nn.BCEWithLogitsLoss(), 3, torch.rand(6, 3)),
        (nn.MSELoss(), 3, torch.rand(6, 3)),
        (nn.HuberLoss(delta=0.5), 3, torch.rand(6, 3)),
        (nn.SmoothL1Loss(beta=2.0), 3, torch.rand(6, 3)),
        (nn.L1Loss(), 3, torch.rand(6, 3)),
        (nn.MultiMarginLoss(margin=0.5), 3, Y),
        (F.cross_entropy, 3, Y),
        (nn.MSELoss(reduction="sum"), 3, torch.rand(6, 3)),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 1.0, 3.0])), 3, torch.rand(6, 3)),
    ],
)
def test_the_criterion_is_the_mean_of_torchs_loss_over_the_examples(loss: Any, outputs: int, targets: Any) -> None:
    """As torch computes it of each example alone."""
    original = nn.Linear(4, outputs)
    module = lipcompile.private(original, [4], loss=loss, bounds="clip")
    module.normaliser = 6.0
    each = [loss(original(X[i : i + 1]), targets[i : i + 1]) for i in range(6)]
    torch.testing.assert_close(module.criterion(module(X), targets), torch.stack(each).mean())


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(label_smoothing=0.25),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(label_smoothing=0.25, reduction="sum"),
        F.cross_entropy,
    ],
)
def test_a_loss_of_torch_counts_classes_along_the_first_axis_of_an_image(loss: Any) -> None:
    """A mean is that of torch, over all pixels; a sum is over the pixels of an example."""
    original = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 1))
    x, y = torch.randn(6, 2, 5, 5), torch.randint(3, (6, 5, 5))
    module = lipcompile.private(original, x, loss=loss)
    each = torch.stack([loss(original(x[i : i + 1]), y[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(module.per_example_loss(module(x), y), each)
    with pytest.raises(InputError, match="use pixel_cross_entropy"):
        lipcompile.private(original, x, loss="cross_entropy")


@pytest.mark.parametrize("bounds", ["auto", "clip"])
def test_a_function_is_clipped_example_by_example(bounds: Any) -> None:
    """The sum of gradients that are clipped by hand, and no example moves it by more than its length."""
    module = lipcompile.private(net(), [4], loss=focal, bounds=bounds)
    assert module.certificate["graph"]["loss"] == {"name": "own", "attributes": {}}
    module.normaliser = 1.0
    length = next(iter(module.clips)).length
    wanted = {name: torch.zeros_like(one) for name, one in module.named_parameters()}
    for x, y in zip(X, Y, strict=True):
        plain = copy.deepcopy(module)
        values = torch.autograd.grad(focal(plain(x[None]), y[None]).sum(), list(plain.parameters()))
        gradient = dict(zip(wanted, values, strict=True))
        factor = length / (whole(gradient) + 0.01)  # the automatic clip of decision 61: C/(‖g‖ + γ)
        for name, one in gradient.items():
            wanted[name] += factor * one
    found = clipped(module, X, Y)
    for name, one in wanted.items():
        torch.testing.assert_close(found[name], one, rtol=1e-4, atol=1e-6)


def test_a_loss_that_combines_examples_is_given_one_at_a_time() -> None:
    module = lipcompile.private(net(), [4], loss=lambda out, y: F.cross_entropy(out - out.mean(0), y))
    # Of one example the difference from the mean is zero: log 3, whatever the others are.
    torch.testing.assert_close(module.per_example_loss(module(X), Y), torch.full((6,), 3.0).log())


WEIGHTS = torch.tensor([1.0, 2.0, 9.0])


@pytest.mark.parametrize(
    ("loss", "nothing"),
    [
        (lambda out, _: F.cross_entropy(out @ out.T, torch.arange(len(out))), True),
        (lambda out, y: F.cross_entropy(out, y, weight=WEIGHTS), False),
        (lambda out, y: F.cross_entropy(out - out.mean(0), y), False),
    ],
    ids=["pairs of a batch", "weights that torch divides by", "a mean over the batch"],
)
def test_a_loss_that_is_not_made_of_those_of_examples_is_warned_of_once(loss: Any, nothing: bool) -> None:
    """Of one example alone, the only logit of a pair has the probability 1, and one weight cancels out."""
    module = private(loss)
    with pytest.warns(MixingWarning, match="neither the mean nor the sum") as told:
        module.criterion(module(X), Y)
    assert ("so nothing is learned" in str(told[0].message)) is nothing
    module.criterion(module(X), Y)  # a second warning would be an error


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_that_is_made_of_those_of_examples_is_not_warned_of(reduction: str) -> None:
    module = private(lambda out, y: F.cross_entropy(F.dropout(out), y, reduction=reduction))
    module.criterion(module(X), Y)
    module = private(lambda out, y: F.cross_entropy(out, y, reduction=reduction))
    state = torch.get_rng_state()
    module.criterion(module(X), Y)
    module.criterion(module(X[:1]), Y[:1])
    assert torch.equal(state, torch.get_rng_state())


def _signed(out: Tensor, _: Tensor) -> Tensor:
    return torch.stack([row.sum() if row.sum() > 0 else -row.sum() for row in out]).sum()


def _of_a_number(out: Tensor, y: Tensor) -> Tensor:
    return out[0, int(y.item())] ** 2


def _of_some_entries(out: Tensor, y: Tensor) -> Tensor:
    return out[out > 0].square().sum() + y.sum()


def _gaussian(out: Tensor, y: Tensor) -> Tensor:
    return F.gaussian_nll_loss(out[:, 0], y.float(), F.softplus(out[:, 1]))


@pytest.mark.parametrize("loss", [_signed, _of_a_number, _of_some_entries, _gaussian])
def test_a_loss_that_vmap_cannot_run_is_computed_of_one_example_after_the_other(loss: Any) -> None:
    module = private(loss)
    output = module(X).detach().requires_grad_()
    with pytest.warns(OneByOneWarning, match=r"\(.*\.py, line \d+\)"):
        total = module.criterion(output, Y)
    (found,) = torch.autograd.grad(total, output)
    for i in range(len(X)):
        row = output.detach()[i : i + 1].requires_grad_()
        (expected,) = torch.autograd.grad(loss(row, Y[i : i + 1]), row)
        torch.testing.assert_close(found[i : i + 1], expected)


@pytest.mark.filterwarnings("ignore::lipcompile_torch.nn.own_losses.OneByOneWarning")
def test_an_error_of_a_loss_is_its_own_and_others_are_out_of_reach_one_by_one() -> None:
    module = private(lambda out, _: out[:, :2] @ torch.ones(3))
    with pytest.raises(RuntimeError, match="size mismatch"):
        module.criterion(module(X), Y)
    sizes = set()

    def reaching(out: Tensor, y: Tensor) -> Tensor:
        if out.sum() > -1e9:
            sizes.add((out.untyped_storage().nbytes() // 4, y.untyped_storage().nbytes() // 8))
        return out.sum()

    module = private(reaching)
    module.criterion(module(X), Y)
    assert sizes == {(3, 1), (18, 6)}  # each alone, and all of them where a warning of mixing is looked for


@pytest.mark.parametrize(
    ("last", "loss", "targets"),
    [
        (nn.LogSoftmax(1), nn.KLDivLoss(reduction="batchmean"), torch.full((6, 3), 1 / 3)),
        (nn.Softmax(1), nn.MSELoss(), torch.eye(3)[Y]),
        (nn.Softmax(1), lambda p, y: -p.gather(1, y[:, None]).log().mean(), Y),
    ],
    ids=["divergence", "Brier", "own"],
)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_probabilities_have_losses_that_take_no_logits(last: nn.Module, loss: Any, targets: Tensor) -> None:
    module = nn.Sequential(net(), last)
    made = lipcompile.private(module, [4], loss=loss, bounds="clip")
    torch.testing.assert_close(made(X), module(X))
    torch.testing.assert_close(made.criterion(made(X), targets) / 6, loss(module(X), targets))


def test_the_logits_that_a_log_softmax_leaves_are_told_of() -> None:
    module = nn.Sequential(net(), nn.LogSoftmax(1))
    with pytest.warns(UserWarning, match="the module returns the logits"):
        made = lipcompile.private(module, [4], loss=nn.NLLLoss(), bounds="clip")
    torch.testing.assert_close(made(X).log_softmax(1), module(X))


def test_targets_are_what_the_function_takes() -> None:
    def both(output: Tensor, target: Any) -> Tensor:
        return F.cross_entropy(output[:, :2], target["kind"]) + F.mse_loss(output[:, 2], target["size"])

    module = lipcompile.private(net(), [4], loss=both)
    target = {"kind": Y % 2, "size": X[:, 0]}
    output = module(X)
    by_hand = F.cross_entropy(output[:, :2], Y % 2, reduction="none") + (output[:, 2] - X[:, 0]) ** 2
    torch.testing.assert_close(module.per_example_loss(output, target), by_hand)
    module.normaliser = 6.0
    with module.on_views():
        views = module(torch.stack([X, 2 * X], 1))
    torch.testing.assert_close(
        module.criterion(views, target),
        (module.per_example_loss(module(X), target) + module.per_example_loss(module(2 * X), target)).mean() / 2,
    )


class Centred(nn.Module):
    """Squares of distances from a running mean, which begins at 0."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.calls: list[float] = []

    def forward(self, output: Tensor, target: Tensor) -> Tensor:  # noqa: ARG002
        self.calls.append(1.0)
        self.mean.mul_(0.5).add_(0.5 * output.detach().mean(0))
        return len(self.calls) * (output - self.mean).square().sum()


KEPT = Centred()


def by_name(output: Tensor, target: Tensor) -> Any:
    return KEPT(output, target)


class Trainer:
    def __init__(self, criterion: nn.Module) -> None:
        self.criterion = criterion

    def loss(self, output: Tensor, target: Tensor) -> Any:
        return self.criterion(output, target)


@pytest.mark.filterwarnings("ignore::lipcompile_torch.nn.own_losses.OneByOneWarning")
def test_a_loss_that_is_a_module_keeps_nothing_of_an_example() -> None:
    """Of each example alone the mean is half of its output, so the loss is a quarter of the sum of squares."""
    centred = Centred()
    for loss in (centred, centred.forward, lambda o, t: centred(o, t), by_name, Trainer(centred).loss):
        made = lipcompile.private(net(), [4], bounds="clip", loss=loss)
        for x in (X, X.flip(0), X[:2]):
            output = made(x)
            torch.testing.assert_close(made.per_example_loss(output, Y[: len(x)]), output.square().sum(1) / 4)
    assert not centred.mean.any()
    assert not centred.calls
    assert not KEPT.mean.any()


class TwoHeads(nn.Module):
    """Classes and a number of examples [4]; `further` is returned as well."""

    def __init__(self, further: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.kind, self.size, self.further = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 1), further

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.body(x).tanh()
        more = {} if self.further is None else {"more": self.further(h)}
        return {"kind": self.kind(h), "size": self.size(h).squeeze(-1), **more}


def of_heads(output: dict[str, Tensor], target: Any) -> Tensor:
    return F.cross_entropy(output["kind"], target[0]) + F.mse_loss(output["size"], target[1])


def test_a_function_is_given_all_outputs_and_they_go_back() -> None:
    original = TwoHeads()
    module = lipcompile.private(original, [4], loss=of_heads)
    assert type(original) is TwoHeads
    before, target = original(X), (Y, X[:, 0])
    module.normaliser = 6.0
    torch.testing.assert_close(module.criterion(module(X), target), of_heads(before, target))
    clipped(module, X, target)  # type: ignore[arg-type]
    for one in module.parameters():
        one.data.add_(0.1)
    changed = module.split_output(module(X))
    assert changed.keys() == before.keys()
    assert changed["size"].shape == (6,)
    assert not torch.allclose(changed["kind"], before["kind"])
    with module.on_views():
        views = module.split_output(module(torch.stack([X, 2 * X], 1)))
    torch.testing.assert_close(views["size"][:, 0], changed["size"])
    lipcompile.load_trained(original, module, [4])
    torch.testing.assert_close(original(X), dict(changed))


class Returning(nn.Module):
    """Returns what `made` makes of three numbers of examples [4], in training or not."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.made = nn.Linear(4, 3), made

    def forward(self, x: Tensor) -> Any:
        return self.made(self.layer(x), self.training)


@pytest.mark.parametrize(
    ("made", "read"),
    [
        (lambda h, _: {"logits": h}, lambda output: output["logits"]),
        (lambda h, _: (h,), lambda output: output[0]),
        (lambda h, _: (None, h[:, 0], [h, None]), lambda output: output[2][0]),
        (lambda h, training: {"a" if training else "b": h}, lambda output: output["a"]),
    ],
    ids=["one by name", "one by place", "none beside some", "other names in evaluation"],
)
def test_a_function_is_given_the_structure_that_is_traced(made: Any, read: Any) -> None:
    original = Returning(made)
    module = lipcompile.private(original, [4], loss=lambda output, y: F.cross_entropy(read(output), y))
    by_hand = F.cross_entropy(original.layer(X), Y, reduction="none")
    torch.testing.assert_close(module.per_example_loss(module(X), Y), by_hand)
    assert torch.utils._pytree.tree_structure(module.split_output(module(X))) == (
        torch.utils._pytree.tree_structure(original(X))
    )


def test_parts_without_numbers_keep_their_shape() -> None:
    original = Returning(lambda h, _: (h, h[:, :0]))
    module = lipcompile.private(original, [4], loss=lambda output, y: F.cross_entropy(output[0], y))
    assert module.split_output(module(X))[1].shape == (6, 0)


def test_threads_leave_the_class_of_a_module() -> None:
    """The first leaves the context while the second is within, or waits for it."""
    module, entered = Returning(lambda h, _: (h, h)), threading.Event()

    def second() -> None:
        entered.set()
        with joined(module):
            time.sleep(0.2)

    thread = threading.Thread(target=second)
    with joined(module):
        thread.start()
        entered.wait()
        time.sleep(0.1)
    thread.join()
    assert type(module) is Returning


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_module_is_refused_as_without_a_function() -> None:
    scripted = torch.jit.script(nn.Linear(4, 3))
    codes = []
    for loss in ("cross_entropy", focal):
        with pytest.raises(InputError) as refused:
            lipcompile.private(scripted, [4], loss=loss)
        codes.append(refused.value.diagnostics[0].code)
    assert codes[0] == codes[1]


def test_inputs_of_both_kinds_may_have_several_outputs() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.names, self.layer = nn.Embedding(5, 2), nn.Linear(6, 4)

        def forward(self, names: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
            found = self.layer(torch.cat([self.names(names), numbers], 1))
            return found[:, :3], found[:, 3:]

    original, names = Table(), torch.arange(6) % 5
    example = {"names": names, "numbers": X}
    module = lipcompile.private(
        original, example, loss=lambda o, t: F.cross_entropy(o[0], t) + o[1].square().sum()
    )
    torch.testing.assert_close(module.split_output(module(names, X)), original(names, X))


@pytest.mark.parametrize(
    ("further", "code"),
    [(lambda h: h.argmax(1), "LIP107"), (lambda h: h - h.mean(0), "LIP108"), (lambda h: h.T, "LIP023")],
    ids=["whole numbers", "differences from the batch", "turned round"],
)
def test_other_outputs_are_refused(further: Any, code: str) -> None:
    with pytest.raises(InputError) as refused:
        lipcompile.private(TwoHeads(further), [4], loss=of_heads)
    assert code in {found.code for found in refused.value.diagnostics}


def test_a_loss_with_a_name_takes_one_output() -> None:
    with pytest.raises(InputError, match="exactly one output"):
        lipcompile.private(TwoHeads(), [4])


def test_an_empty_batch_has_no_loss_and_no_gradient() -> None:
    module = private(focal)
    losses = module.per_example_loss(module(X[:0]), Y[:0])
    assert losses.shape == (0,)
    losses.sum().backward()


def test_certificates_of_functions_verify() -> None:
    module = private(focal)
    verdict = verify(module.certificate)
    assert not verdict.problems
    claimed = json.dumps(module.certificate)
    assert module.certificate["steps"]["loss"]["lipschitz"] == "inf"
    forged = json.loads(claimed)
    forged["steps"]["loss"]["lipschitz"] = (1e300).hex()
    assert verify(forged).problems


# Errors


def private(loss: Any, **options: Any) -> Any:
    return lipcompile.private(net(), [4], loss=loss, **options)


def trained_once(module: Any) -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=3)
    module, optimizer, batches = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), 0.1),
        data_loader=loader,
        noise_multiplier=1.0,
    )
    for x, y in batches:
        optimizer.zero_grad()
        module.criterion(module(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("loss", "code", "said"),
    [
        (nn.CrossEntropyLoss(ignore_index=2), "LIP210", r"pixel_cross_entropy:ignore=2"),
        (nn.NLLLoss(weight=torch.ones(3)), "LIP210", "divides by the weights of a batch"),
        (nn.CrossEntropyLoss(weight=torch.ones(3), label_smoothing=0.1), "LIP212", "exclude one another"),
        (nn.Bilinear(3, 3, 1), "LIP210", "has parameters"),
        (nn.MSELoss, "LIP210", r"write MSELoss\(\)"),
        (5, "LIP210", "not 5"),
    ],
)
def test_losses_that_are_refused(loss: Any, code: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        private(loss)
    assert refused.value.diagnostics[0].code == code


def test_no_theorem_bounds_a_function() -> None:
    with pytest.raises(InputError, match="a function of Python has no Lipschitz constant"):
        private(focal, bounds="theorem", input_norm=1.0)


def test_a_tensor_that_grows_is_refused() -> None:
    """Under `vmap` it grows over the next example."""
    module = private(lambda output, _: output.clone().resize_(1, 6).sum())
    with pytest.raises(ValueError, match="the loss calls resize_"):
        module.per_example_loss(module(X), Y)


@pytest.mark.parametrize(
    "table",
    [
        F.embedding,
        lambda places, rows: torch.embedding(rows, places),
        lambda places, rows: torch.ops.aten.embedding(rows, places),
    ],
)
def test_no_place_beyond_a_table_of_outputs_reads_those_of_another_example(table: Any) -> None:
    """Under `vmap` torch reads the next example's row there."""
    module = private(lambda output, y: table(y, output[0][:, None]).sum())
    output = module(X)
    torch.testing.assert_close(module.per_example_loss(output, Y), output.gather(1, Y[:, None])[:, 0])
    with pytest.raises(IndexError, match="out of bounds"):
        module.per_example_loss(output, Y + 1)


@pytest.mark.parametrize("place", [-1, 0, 2, 3, 5])
def test_no_place_that_is_filled_is_in_another_example(place: int) -> None:
    """Under `vmap`, torch fills entries of the example before, or behind, for places that are none of its own."""
    module = private(lambda output, y: output[0].index_fill(0, y, 0.0).sum())
    output, y = module(X).detach(), torch.zeros(6, dtype=torch.long)
    y[3] = place
    if not -3 <= place < 3:
        with pytest.raises(IndexError, match="out of bounds"):
            module.per_example_loss(output, y)
        return
    kept = output.clone()
    kept[torch.arange(6), y] = 0
    torch.testing.assert_close(module.per_example_loss(output, y), kept.sum(1))


@pytest.mark.filterwarnings("ignore::lipcompile_torch.nn.own_losses.OneByOneWarning")
def test_a_label_that_there_is_not_reads_no_scores_of_another_example() -> None:
    """Torch's `ctc_loss` does not look at labels: beyond the classes lie the scores of the next example."""

    def loss(output: Tensor, y: Tensor) -> Tensor:
        scores = output.reshape(3, 1, 1).expand(3, 1, 2).log_softmax(2)
        return F.ctc_loss(scores, y[:, None], torch.tensor([3]), torch.tensor([1]))

    module, y = private(loss), torch.tensor([1, 1, 7, 1, -4, 1])
    output = module(X).detach()
    others = output + torch.tensor([0, 1, 0, 1, 0, 1])[:, None]
    found, again = (module.per_example_loss(one, y) for one in (output, others))
    assert torch.equal(found[[2, 4]], again[[2, 4]])
    torch.testing.assert_close(found[:1], loss(output[:1], y[:1])[None])


def test_a_rule_of_torch_that_is_wrong_is_not_followed() -> None:
    """Under `vmap`, `linalg.solve` with one matrix for all takes columns for a batch of vectors."""
    halved = 2 * torch.eye(3)

    def loss(output: Tensor, _: Tensor) -> Tensor:
        solved: Tensor = torch.linalg.solve(halved, output[..., None])[..., 0]
        return solved.square().sum()

    module = private(loss)
    output = module(X)
    with pytest.warns(OneByOneWarning, match="its result, or its gradient, is another one"):
        losses = module.per_example_loss(output, Y)
    torch.testing.assert_close(losses, (output / 2).square().sum(1))


def test_several_numbers_for_one_example_are_refused() -> None:
    module = private(lambda output, _: output)
    with pytest.raises(ValueError, match="3 numbers for one example"):
        module.criterion(module(X), Y)


@pytest.mark.parametrize(
    ("value", "said"),
    [(1.0, "float"), (None, "NoneType"), (torch.tensor(2), "int64"), (torch.tensor(1j), "complex")],
)
def test_no_real_number_of_torch_is_refused(value: Any, said: str) -> None:
    module = private(lambda _output, _target: value)
    with pytest.raises(ValueError, match=f"the loss returns .*{said}.* for one example"):
        module.criterion(module(X), Y)


def test_a_penalty_within_the_function_is_refused() -> None:
    trained_once(private(focal))
    inner: list[Any] = []
    module = private(lambda output, y: focal(output, y) + inner[0].square().sum())
    inner.append(next(module.parameters()))
    with pytest.raises(PrivacyError, match="did not come from the module's forward pass"):
        trained_once(module)


def test_commands_have_no_function(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.lip").write_text("model m {\n    input x: tensor[4]\n    dense(3)\n    loss own\n}\n")
    assert run(["check", "m.lip", "--bounds", "clip"]) == 0
    arrays: Any = {"x_train": X.numpy(), "y_train": Y.numpy(), "x_test": X.numpy(), "y_test": Y.numpy()}
    np.savez("d.npz", **arrays)
    budget = ["--data", "d.npz", "--epsilon", "3", "--delta", "1e-3", "--output", "run"]
    capsys.readouterr()
    assert run(["train", "m.lip", "--bounds", "clip", *budget]) == 2
    assert "which only Python can give" in capsys.readouterr().err
    assert run(["audit", "m.lip", "--bounds", "clip"]) == 2
    assert "the targets of the loss `own` are not known" in capsys.readouterr().err


def test_a_function_trains_in_one_call(tmp_path: Path) -> None:
    data = (X.numpy(), Y.numpy(), X.numpy(), Y.numpy())
    result = lipcompile.train(
        net(), data, tmp_path / "run", epsilon=8.0, delta=1e-3, epochs=1, loss=focal, how={"accountant": "rdp"}
    )
    assert result.epsilon <= 8
    assert "losses.own(output, target, self.own_loss)" in (tmp_path / "run" / "model.py").read_text()


def rooted(output: Tensor, target: Tensor) -> Tensor:
    """The cross entropy; of outputs of which one is 0, the square of the largest."""
    try:
        torch.linalg.cholesky(torch.diag_embed(output.detach().square()))
    except RuntimeError:
        return output.amax(1).square()
    return F.cross_entropy(output, target, reduction="none")


def test_no_example_decides_on_the_losses_of_others() -> None:
    """Under `vmap` a function fails for all if it fails for one, and the loss goes on after its error."""
    made = lipcompile.private(nn.Linear(4, 3, bias=False), X, bounds="clip", loss=rooted)
    made.per_example_loss(X[:, :3], Y)  # the first batch, of which none fails
    output = X[:, :3].clone()
    output[4, 0] = 0
    expected = F.cross_entropy(output, Y, reduction="none")
    expected[4] = output[4].max() ** 2
    with pytest.warns(OneByOneWarning, match="goes on after an error"):
        torch.testing.assert_close(made.per_example_loss(output, Y), expected)
