"""Several processes train as one does: the same sums, the same noise once, one ledger, and errors that all share.

Two processes run everything in `distributed_program.py` once; four do at night. Fixed seeds, but for what is drawn
from the operating system's entropy: each of its fewer than 100 comparisons fails by chance in 2e-9 of runs.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import torch
from lipcompile_privacy.accounting import Mechanism
from lipcompile_torch.certify.precision import rounding_slack
from lipcompile_torch.distributed import World
from lipcompile_torch.sharding import check_backend
from lipcompile_torch.train.checkpoint import read_checkpoint, restore
from lipcompile_torch.train.ledger import Ledger, read_ledger
from lipcompile_torch.train.reduction import owners
from lipcompile_torch.train.sampler import PrivateLoader
from torch.optim import Adam

from tests.torch.clip_nets import expected, per_example

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[1] / "distributed_program.py"
HERE = run_path(str(PROGRAM))
Training, BATCH, SIZE, KINDS = HERE["Training"], HERE["BATCH"], HERE["SIZE"], HERE["KINDS"]
STEPS = SIZE // BATCH


class Run:
    """What the processes left behind."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        command = [sys.executable, str(PROGRAM), str(folder)]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else dict(os.environ)
        self._ranks = [
            subprocess.Popen([*command, str(rank), str(size)], env=environment, stderr=subprocess.PIPE)
            for rank in range(size)
        ]

    def wait(self) -> None:
        complaints = [process.communicate(timeout=600)[1].decode() for process in self._ranks]
        assert [process.returncode for process in self._ranks] == [0] * self.size, complaints
        self._results = [torch.load(self.folder / f"{rank}.pt", weights_only=False) for rank in range(self.size)]

    def errors(self, scenario: str) -> list[Any]:
        """Return what each process ended a scenario with that must fail."""
        return [results[scenario] for results in self._results]

    def __getitem__(self, scenario: str) -> list[Any]:
        found = [results[scenario] for results in self._results if scenario in results]
        for result in found:
            if isinstance(result, Exception):
                raise AssertionError(f"{scenario}: {result!r}") from result
        return found


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.nightly)])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    started = Run(tmp_path_factory.mktemp("ranks"), request.param)
    try:
        started.wait()
        yield started
    finally:
        for process in started._ranks:
            process.kill()


@pytest.fixture(scope="module")
def alone() -> Any:
    """The same training in this process, as a whole."""
    return HERE["summed"]("ours")


# --- sums ---


def assert_same_training(found: Any, expected: Any) -> None:
    assert len(found["seen"]) == len(expected["seen"]) == STEPS
    for step, reference in zip(found["seen"], expected["seen"], strict=True):
        for gradient, wanted in zip(step, reference, strict=True):
            torch.testing.assert_close(gradient, wanted, atol=1e-6, rtol=1e-5)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_one_process_over_all_steps(run: Run, alone: Any, kind: str) -> None:
    for found in run[f"summed {kind}"]:
        assert_same_training(found, alone)
    assert any(float(gradient.abs().max()) > 0.01 for gradient in alone["seen"][0])


def test_bounds_that_follow_sharded_weights_see_them_whole(run: Run) -> None:
    expected = HERE["following"]("ours")
    for found in run["following"]:
        assert_same_training(found, expected)


@pytest.mark.parametrize("kind", ["ours", "fsdp"])
def test_a_mean_in_place_of_the_sum_would_show(run: Run, alone: Any, kind: str) -> None:
    for found in run[f"fault mean {kind}"]:
        with pytest.raises(AssertionError):
            assert_same_training(found, alone)


def test_gradients_clipped_one_by_one_are_summed_alike(run: Run) -> None:
    for scenario, views in (("one by one", ()), ("views one by one", (HERE["three_views"],))):
        expected = HERE["clipped_one_by_one"](*views)
        for found in run[scenario]:
            assert_same_training(found, expected)


@cache
def clipped_alone(net: Any, views: Any = None, inputs: Any = None) -> tuple[Any, list[dict[str, torch.Tensor]]]:
    """Training with bounds by clip in this process, and the sums of gradients clipped by hand at each step."""
    options = {"noise_multiplier": 1e-9, "seed": 7, "slack": 0.0, "views": views, "inputs": inputs}
    training, sums = HERE["Training"](net=net, **options), []
    for x, y in training.loader:
        zero = {name: torch.zeros_like(p) for name, p in training.inner.named_parameters()}
        given = views(x) if views else x
        given = as_one(training.inner, inputs(given)) if inputs else given
        sums.append(expected(training.inner, given, y) if len(x) else zero)
        training.backward(x, y)
        training.optimizer.step()
    return training.result(), sums


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("net", ["clipped", "flat", "tied", "mixed"])
def test_clips_in_the_backward_pass_are_those_of_examples_whoever_has_them(run: Run, net: str, kind: str) -> None:
    alone, sums = clipped_alone(HERE["CLIPPED"][net])
    assert max(float(one["inner.weight"].norm()) for one in sums) > 0.05
    assert_clipped_by_hand(alone, sums)
    for found in run[f"{net} {kind}"]:
        assert_same_training(found, alone)


def assert_clipped_by_hand(alone: Any, sums: list[dict[str, torch.Tensor]]) -> None:
    for step, by_hand in zip(alone["seen"], sums, strict=True):
        for name, gradient in zip(alone["weights"], step, strict=True):
            if name in by_hand:  # the rest has a theorem
                torch.testing.assert_close(gradient.double(), by_hand[name].double(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("net", ["clipped", "flat", "mixed", "proved"])
def test_views_of_an_example_are_averaged_before_its_clip_whoever_has_it(run: Run, net: str, kind: str) -> None:
    alone, sums = clipped_alone(HERE["VIEWED"][net], HERE["three_views"])
    assert_clipped_by_hand(alone, sums)
    plain = HERE["summed"]("ours", HERE["VIEWED"][net])
    for found in run[f"views {net} {kind}"]:
        assert_same_training(found, alone)
        with pytest.raises(AssertionError):  # the comparison can tell
            assert_same_training(found, plain)


def as_one(module: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the entries of several inputs, or of views of them, in the order of the module's own."""
    columns = [inputs[name] if shape else inputs[name][..., None] for name, shape in module.input_parts.items()]
    return torch.cat(columns, dim=-1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["numbers", "proved", "texts", "views"])
def test_several_inputs_are_those_of_one_process_whoever_has_them(run: Run, name: str, kind: str) -> None:
    net, inputs = HERE["SEVERAL"]["numbers" if name == "views" else name]
    alone, sums = clipped_alone(net, HERE["three_views"] if name == "views" else None, inputs)
    if net.clips:
        assert max(float(one["outer.weight"].norm()) for one in sums) > 0.05
    assert_clipped_by_hand(alone, sums)
    for found in run[f"several {name} {kind}"]:
        assert_same_training(found, alone)


@pytest.mark.parametrize("kind", KINDS)
def test_thresholds_of_clip_groups_are_those_of_one_process(run: Run, kind: str) -> None:
    """Hardly any noise: counts of all ranks together move the threshold as those of one process do."""
    alone = HERE["clipped_at_quantiles"]("ours")
    for found in run[f"quantiles {kind}"]:
        assert_same_training(found, alone)
        assert found["lengths"] == run[f"quantiles {kind}"][0]["lengths"]
        assert found["lengths"] == pytest.approx(alone["lengths"], rel=1e-4)
        assert len(set(found["lengths"])) > STEPS / 2


def test_one_clip_for_all_leaves_some_gradients_as_they_are_and_shortens_others() -> None:
    torch.manual_seed(0)
    gradients = per_example(HERE["Flat"](), *HERE["make_loader"](SIZE, BATCH).dataset[:])
    norms = torch.cat([g.flatten(1) for g in gradients.values()], dim=1).norm(dim=1)
    assert float(norms.min()) < 0.8 < float(norms.max())


@pytest.mark.parametrize("net", ["Net", "Clipped", "Flat"])
def test_shards_may_be_gathered_for_activations_that_are_computed_again(run: Run, net: str) -> None:
    alone = HERE["summed"]("ours", HERE[net])
    for found in run[f"recomputed {net}"]:
        assert_same_training(found, alone)


def test_shards_may_be_compiled(run: Run) -> None:
    alone = HERE["summed"]("ours", HERE["Flat"])
    for found in run["compiled"]:
        assert_same_training(found, alone)


def test_sums_of_clipped_shards_are_rounded_to_half_precision_once(run: Run) -> None:
    for found, exact in run["half"]:
        assert found.dtype == torch.bfloat16
        assert found.tolist() == torch.full((3, 3), exact).bfloat16().tolist()


def test_clips_of_shards_of_others_are_refused(run: Run) -> None:
    for error in run["shards of others"]:
        assert error.startswith("ValueError: parameters of the clip group 'inner' are sharded")
        assert "fully_shard(module)" in error


def test_a_matrix_of_two_layers_is_not_sharded_with_one_of_them(run: Run) -> None:
    for error in run["tied by layer"]:
        assert error.startswith("RuntimeError: a matrix that two layers use is sharded with one of them")


def test_shares_are_a_partition_in_equally_many_pieces() -> None:
    class Rank(World):
        def __init__(self, rank: int) -> None:
            self.rank, self.size = rank, 3

        def first(self, doing: str, compute: Callable[[], Any]) -> Any:  # noqa: ARG002  # all have the same seed
            return compute()

    def batches(loader: PrivateLoader) -> list[list[list[int]]]:
        """Return, for each logical batch, the first features of each of its pieces."""
        found: list[list[list[int]]] = []
        for x, _ in loader:
            assert loader.current is not None
            if loader.current.position == 0:
                found.append([])
            found[-1].append([hash(tuple(row.tolist())) for row in x])
            assert loader.current.complete or len(x) <= 1
        return found

    plain = HERE["make_loader"](60, 5)
    whole = batches(PrivateLoader(plain, 1, seed=4))
    ranks = [batches(PrivateLoader(plain, 1, seed=4, world=Rank(rank))) for rank in range(3)]
    for logical, *shares in zip(whole, *ranks, strict=True):
        assert len({len(pieces) for pieces in shares}) == 1
        together = [example for pieces in shares for piece in pieces for example in piece]
        assert sorted(together) == sorted(example for piece in logical for example in piece)
    sizes = {sum(map(len, pieces)) for pieces in ranks[2]}
    assert 0 in sizes
    assert max(sizes) > 1  # in pieces


def test_owners_share_the_entries_evenly() -> None:
    found = owners({"a": 5, "b": 100, "c": 60, "d": 45, "e": 3}, 2)
    assert found == {"b": 0, "c": 1, "d": 1, "a": 0, "e": 0} or found["b"] != found["c"] == found["d"]
    assert set(owners({"a": 5, "b": 100}, 1).values()) == {0}


# --- noise ---


def noise_of_the_analysis() -> float:
    """Return the standard deviation of a released entry; the network's bounds do not depend on its width."""
    whole = math.hypot(*HERE["Wide"].bounds.values())
    return 1e4 * whole * (1 + rounding_slack(torch.float32)) / float(BATCH)


def noise_ratios(found: Any) -> dict[str, tuple[float, int]]:
    """Return, by parameter, the variance of what was released over that of the analysis, of how many normals."""
    std, ratios = noise_of_the_analysis(), {}
    for index, name in enumerate(found["weights"]):
        seen = torch.stack([step[index] for step in found["seen"]]).double()
        ratios[name] = (float(seen.square().mean()) / std**2, seen.numel())
    return ratios


def has_noise_of_the_analysis(found: Any) -> bool:
    return all(abs(ratio - 1) < 6 * math.sqrt(2 / n) for ratio, n in noise_ratios(found).values())


def correlation_of_halves(found: Any) -> tuple[float, int]:
    """Return that of two ranks' shards at the first step, and of how many pairs."""
    seen = found["seen"][0][0].double()  # [512, 4]
    first, second = seen[:128].flatten(), seen[256:384].flatten()  # of different ranks, for two and for four
    return float((first * second).mean() / (first.norm() * second.norm() / len(first))), len(first)


@pytest.mark.parametrize("scenario", ["noisy ours", "noisy ddp", "noisy fsdp", "unseeded", "secure"])
def test_the_sum_gets_the_noise_of_one_process_once(run: Run, scenario: str) -> None:
    for found in run[scenario]:
        assert has_noise_of_the_analysis(found)
        correlation, pairs = correlation_of_halves(found)
        assert abs(correlation) < 6 / math.sqrt(pairs)
    assert has_noise_of_the_analysis(HERE["noisy"]("ours"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_variance_is_that_of_the_analysis_to_half_a_percent(run: Run, kind: str) -> None:
    """Fixed seeds. Within 6·√(2/n) of the truth but for 2e-9 of seeds; rounding of sums adds 2e-3 at most."""
    std = noise_of_the_analysis()
    for squares, n in run[f"squares {kind}"]:
        error = 6 * math.sqrt(2 / n)
        assert error < 5e-3
        assert 1 - error < squares / n / std**2 < 1 + 2e-3 + error


def test_noise_of_every_rank_averaged_would_show(run: Run) -> None:
    for found in run["fault noise"]:
        assert not has_noise_of_the_analysis(found)
        assert noise_ratios(found)["inner.weight"][0] == pytest.approx(1 / run.size, rel=0.1)


def test_the_same_noise_on_all_shards_would_show(run: Run) -> None:
    for found in run["fault shards"]:
        correlation, pairs = correlation_of_halves(found)
        assert abs(correlation) > 6 / math.sqrt(pairs)


@pytest.mark.parametrize("kind", ["ours", "fsdp"])
def test_noise_correlated_over_steps_is_kept_with_its_owner(run: Run, kind: str) -> None:
    # The inverse of the mixing turns what was released into independent normals again, step by step.
    for found in run[f"correlated {kind}"]:
        mixed = [torch.stack([step[i] for step in found["seen"]]).double().flatten(1) for i in range(3)]
        normals = torch.linalg.solve(found["mixing"], torch.cat(mixed, dim=1))
        normals /= normals.square().mean().sqrt()
        covariance = normals @ normals.T / normals.shape[1]
        assert float((covariance - torch.eye(STEPS)).abs().max()) < 6 * math.sqrt(2 / normals.shape[1])
        assert not has_noise_of_the_analysis(found)  # it is another covariance than that of independent noise


@pytest.mark.parametrize("scenario", ["noisy ours", "noisy ddp", "noisy fsdp", "secure", "learned ours Net"])
def test_all_ranks_hold_the_same_bits(run: Run, scenario: str) -> None:
    first, *others = run[scenario]
    for other in others:
        for name, weight in first["weights"].items():
            assert torch.equal(weight, other["weights"][name])
        for step, theirs in zip(first["seen"], other["seen"], strict=True):
            assert all(map(torch.equal, step, theirs))


# --- training ---


LEARNED = ["ours Net", "fsdp Net", "fsdp Clipped"]


@pytest.mark.parametrize("kind", LEARNED)
def test_weights_stay_in_their_sets(run: Run, kind: str) -> None:
    for found in run[f"learned {kind}"]:
        for state in (found["weights"], found["after"]):
            for name in ("inner.weight", "outer.weight"):
                assert torch.linalg.matrix_norm(state[name].double(), 2) <= 1
            assert torch.linalg.vector_norm(state["inner.bias"].double()) <= 0.1
        for name, norm in found["norms"].items():
            assert float(torch.linalg.norm(found["weights"][name].double(), 2)) <= norm
        assert any(not torch.equal(found["weights"][name], found["after"][name]) for name in found["weights"])


def test_shards_train_also_where_outputs_are_looked_at_in_between(run: Run) -> None:
    assert all(len(found["seen"]) == STEPS for found in run["evaluated"])


@pytest.mark.parametrize("kind", LEARNED)
def test_a_clip_that_adapts_is_the_same_everywhere(run: Run, kind: str) -> None:
    clips = [found["clip"] for found in run[f"learned {kind}"]]
    assert all(clip == clips[0] for clip in clips)
    assert clips[0]["steps"] == STEPS
    assert clips[0]["value"] != 0.5


@pytest.mark.parametrize("kind", LEARNED)
def test_a_checkpoint_is_whole_and_another_number_of_processes_goes_on_from_it(run: Run, kind: str) -> None:
    found = run[f"learned {kind}"]
    saved = read_checkpoint(run.folder / f"{kind}.pt")
    net = HERE[kind.split()[1]]
    single = Training(net=net, build=lambda ps: Adam(ps, lr=0.1), loss_clip=HERE["AdaptiveClip"](0.5))
    ledger = Ledger(run.folder / f"{kind}.jsonl", single.engine.relation, SIZE)
    restore(saved, single.inner, single.optimizer, ledger)
    ledger.close()
    for rank in found:
        for name, weight in single.inner.named_parameters():
            assert torch.equal(weight, rank["weights"][name])
            assert torch.equal(weight, rank["restored"][name])
        for parameter, moment, restored in zip(
            single.inner.parameters(), rank["moments"], rank["restored_moments"], strict=True
        ):
            assert torch.equal(single.optimizer.state[parameter]["exp_avg"], moment)
            assert torch.equal(moment, restored)


# --- the ledger ---


@pytest.mark.parametrize("kind", LEARNED)
def test_every_step_is_counted_once(run: Run, kind: str) -> None:
    record = read_ledger(run.folder / f"{kind}.jsonl")
    assert record.charges == {Mechanism(BATCH / SIZE, 1.0): 2 * STEPS}
    for found in run[f"learned {kind}"]:
        assert found["steps"] == 2 * STEPS
        assert found["head"] == record.hashes[-1]


def test_a_sum_of_all_examples_is_released_once(run: Run) -> None:
    """Draws of several ranks could be averaged, at the cost of one. Shares of a sum are refused."""
    first, *others = run["released sums"]
    assert not torch.equal(first["sum"], torch.arange(5, dtype=torch.float64))
    assert all(torch.equal(first["sum"], other["sum"]) for other in others)
    for found in (first, *others):
        assert found["charges"] == {Mechanism(1.0, 2.0): 1}
        assert "rank 1 and rank 0 have different sums: every process must give" in found["refused"]


def test_nobody_moves_before_the_line_is_on_the_disk(run: Run) -> None:
    first, *others = run["full"]
    assert "OSError" in first["error"]
    assert all("RankError: rank 0 failed" in other["error"] for other in others)
    assert not any(found["moved"] for found in (first, *others))


# --- errors ---


def test_an_error_of_one_rank_is_an_error_of_all(run: Run) -> None:
    for rank, found in enumerate(run["scaled"]):
        expected = "PrivacyError: the cotangents" if rank == 1 else "RankError: rank 1 failed"
        assert found["error"].startswith(expected)
        assert not found["moved"]
        assert found["counted"] == 0
        assert found["steps"] == 1 + STEPS  # the abandoned one, and an epoch


@pytest.mark.parametrize("kind", ["ours", "ddp"])
def test_a_gradient_that_one_rank_changed_is_refused_by_all(run: Run, kind: str) -> None:
    for rank, error in enumerate(run[f"clipped sum {kind}"]):
        assert error.startswith("PrivacyError" if rank == 1 else "RankError: rank 1 failed")
        assert "was not written by backward() alone, or changed" in error


@pytest.mark.parametrize("net", ["Net", "Clipped"])
@pytest.mark.parametrize("when", ["never", "before", "behind"])
def test_shards_that_one_rank_changed_are_refused_by_all(run: Run, when: str, net: str) -> None:
    """As by clip_grad_norm_: all noise stays, and one example may move a part by what the others' norms do."""
    for rank, error in enumerate(run[f"changed {when} {net}"]):
        if when == "never":
            assert error == "nothing"
        else:
            assert error.startswith("PrivacyError" if rank == 1 else "RankError: rank 1 failed")
            assert "was not written by backward() alone, or changed" in error


@pytest.mark.parametrize("kind", ["ours", "ddp", "fsdp"])
def test_a_term_on_parameters_is_refused(run: Run, kind: str) -> None:
    for error in run[f"penalty {kind}"]:
        assert error.startswith("PrivacyError: a part of the gradient of outer.weight did not come from")


WITHIN = [f"within {kind} {net}" for kind in ("ours", "fsdp") for net in ("Net", "Clipped")]


@pytest.mark.parametrize("scenario", [*WITHIN, "gathered"])
def test_a_term_on_parameters_within_the_loss_is_refused(run: Run, scenario: str) -> None:
    """After its forward pass alone, FSDP leaves the parameters of the whole module whole."""
    for error in run[f"penalty {scenario}"]:
        assert error.startswith("PrivacyError: a part of the gradient of outer.weight did not come from")


@pytest.mark.parametrize("net", ["Net", "Clipped"])
def test_hooks_on_shards_are_refused(run: Run, net: str) -> None:
    for error in run[f"hooks {net}"]:
        assert error.startswith("PrivacyError: outer.weight has hooks, which may change gradients")


@pytest.mark.parametrize("net", ["Net", "Clipped"])
def test_additions_to_shards_are_counted(run: Run, net: str) -> None:
    for error in run[f"pieces {net}"]:
        assert error.startswith("PrivacyError: 17 backward passes were accumulated for this batch")


@pytest.mark.parametrize("kind", ["ours", "ddp"])
def test_gradients_that_were_summed_by_hand_are_refused(run: Run, kind: str) -> None:
    """Torch does not count that as a change."""
    for error in run[f"doubled {kind}"]:
        assert "was not written by backward() alone, or changed" in error


def test_a_sum_that_was_refused_is_not_summed_again(run: Run) -> None:
    for first, second in run["written"]:
        assert "is longer than its bound for this batch" in first
        assert "was rejected after it was summed over all processes" in second


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        ("given up", "every rank must take every batch"),
        ("loaded", "different weights"),
        ("unequal", "different noise"),
        ("strategies", "different noise"),
        ("clips", "different clips: give every rank the same module, and clip alike"),
        ("kinds of clips", "different clips"),
        ("groups", "different clips"),
        ("fault sampling", "different batches"),
        ("fault share", "all ranks together received"),
    ],
)
def test_ranks_that_do_not_do_the_same_are_refused(run: Run, scenario: str, reason: str) -> None:
    for found in run[scenario]:
        assert found.startswith("RankError")
        assert reason in found


def test_wrappers_that_change_gradients_are_refused(run: Run) -> None:
    for found in run["wrappers"]:
        assert "communication hook" in found["hooked"]
        assert "mixed precision" in found["half"]
        assert "is sharded in half precision" in found["narrow"]
    for found in run["unsummed"]:
        assert "set_requires_gradient_sync(True)" in found["set_requires_gradient_sync"]
        assert "set_gradient_divide_factor" in found["set_gradient_divide_factor"]
        by_hand = "set_manual_backward_finalization"
        assert by_hand in found.get(by_hand, f"torch before 2.15 has no {by_hand}")
    for found in run["narrow gradients"]:
        assert "has a grad_dtype that differs from its dtype" in found


def test_nobody_goes_on_without_a_rank_that_died(run: Run) -> None:
    survivors = run["death"]
    assert len(survivors) == run.size - 1
    for found in survivors:
        assert "RankError: a process of this training has ended" in found["error"]
        assert not found["moved"]
    assert read_ledger(run.folder / "death.jsonl").total_steps == 0


def test_an_engine_that_knows_of_one_process_refuses_to_be_one_of_many(tmp_path: Path) -> None:
    training = Training()
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        late, one = "initialised after the privacy engine", torch.ones(1, dtype=torch.float64)
        assert late in HERE["message"](training.train)
        assert late in HERE["message"](lambda: HERE["release_sum"](training.engine, one, 1.0, 1.0, SIZE))
        fresh = Training()  # a group of one
        fresh.train()
        assert fresh.engine.ledger.record.total_steps == STEPS
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.nightly
@pytest.mark.parametrize("options", [[], ["--shard"]])
def test_the_example_trains_under_torchrun(tmp_path: Path, options: list[str]) -> None:
    root = Path(__file__).parents[3]
    emitted, digits = tmp_path / "digits.py", root / "lipcompile" / "data" / "digits.lip"
    subprocess.run(
        [sys.executable, "-P", "-m", "lipcompile", "compile", str(digits), "-o", str(emitted)], check=True
    )
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    example = [str(root / "examples" / "distributed.py"), str(emitted), "--epochs", "5", "--output", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *launch, *example, *options], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "2 processes: accuracy" in done.stdout
    assert "ε = 3.000" in done.stdout or "ε = 2.99" in done.stdout
    assert read_ledger(tmp_path / "ledger.jsonl").total_steps == 5 * 3
    assert read_checkpoint(tmp_path / "checkpoint.pt").steps == 5 * 3


@pytest.mark.parametrize("backends", ["cpu:gloo,cuda:gloo", "cpu:gloo,cuda:nccl"])
def test_shards_of_a_gpu_are_not_gathered_by_gloo(backends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended with a segmentation fault of torch."""
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda _: backends)
    check_backend(torch.device("cpu"), None)
    if "nccl" in backends:
        check_backend(torch.device("cuda"), None)
        return
    with pytest.raises(ValueError, match="gloo cannot gather them: call init_process_group"):
        check_backend(torch.device("cuda"), None)
