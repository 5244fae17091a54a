"""The method of every table here: how settings are chosen, what is repeated, and where the figures are kept.

For each seed: split off the test part, choose settings on a validation part of the rest with a stated number of
trials, train once on all but the test part, and look at the test part once. Where the test part is the same for
all seeds, settings are chosen once, for the first. The choice is not counted in ε.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness import line, save

Settings = dict[str, Any]
Part = Literal["validation", "test"]


@dataclass(frozen=True)
class LogUniform:
    """A positive number whose logarithm is drawn uniformly."""

    low: float
    high: float

    def draw(self, source: random.Random) -> float:
        """Return a number, to three digits."""
        drawn = math.exp(source.uniform(math.log(self.low), math.log(self.high)))
        return float(f"{drawn:.3g}")


Space = Mapping[str, Sequence[Any] | LogUniform]


@dataclass(frozen=True)
class Score:
    """What a training came to.

    Args:
        value: accuracy or AUROC, in [0, 1], on the part that was asked for.
        epsilon: what its ledger says it spent; None where nothing was asked, in trials.
        seconds: CPU seconds, or seconds on another device.
        device: that it ran on.
    """

    value: float
    epsilon: float | None = None
    seconds: float = 0.0
    device: str = "cpu"


Run = Callable[[Settings, int, Part], Score]


@dataclass(frozen=True)
class Trial:
    """Settings and what they scored on the validation part."""

    settings: Settings
    value: float


def draw(space: Space, source: random.Random) -> Settings:
    """Return settings at random."""
    return {name: _one(choices, source) for name, choices in space.items()}


def _one(choices: Sequence[Any] | LogUniform, source: random.Random) -> Any:
    return choices.draw(source) if isinstance(choices, LogUniform) else source.choice(choices)


def _neighbour(best: Settings, space: Space, source: random.Random) -> Settings:
    """Return `best` with two settings drawn again; a `LogUniform` moves by at most a factor of 3."""
    changed = dict(best)
    for name in source.sample(sorted(space), min(2, len(space))):
        choices = space[name]
        if isinstance(choices, LogUniform):
            near = LogUniform(max(choices.low, best[name] / 3), min(choices.high, best[name] * 3))
            changed[name] = near.draw(source)
        else:
            changed[name] = source.choice(choices)
    return changed


def search(space: Space, run: Run, trials: int, seed: int) -> list[Trial]:
    """Return that many trials, scored on the validation part: half at random, then changes of the best so far."""
    source = random.Random(seed)
    done: list[Trial] = []
    for number in range(trials):
        explore = number < max(1, trials // 2)
        settings = draw(space, source) if explore else _neighbour(best(done).settings, space, source)
        done.append(Trial(settings, run(settings, seed, "validation").value))
    return done


def best(trials: Sequence[Trial]) -> Trial:
    """Return the first of those that scored most; what is not finite never wins."""
    return max(trials, key=lambda trial: trial.value if math.isfinite(trial.value) else -math.inf)


class Rows:
    """Rows of a JSON file by name, written one by one; those of other names stay.

    Args:
        path: the file; None keeps rows in memory.
        settings: what all rows share; a file that was made with others is begun anew.
        resume: keep the seeds that a row has already, in place of measuring it again.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], resume: bool = False) -> None:
        self.path, self.settings, self.resume = path, dict(settings), resume
        self.rows: dict[str, dict[str, Any]] = self._read().get("rows", {})

    def _read(self) -> dict[str, Any]:
        if self.path is None or not self.path.exists():
            return {}
        found: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        return found if found.get("settings") == self.settings else {}

    def put(self, name: str, row: Mapping[str, Any]) -> None:
        """Replace the row, in memory and in the file, where other processes may have put theirs."""
        if self.path is not None:
            self.rows = self._read().get("rows", {})
        self.rows[name] = dict(row)
        save(self.path, {"settings": self.settings, "rows": dict(sorted(self.rows.items()))})

    def begun(self, name: str) -> dict[str, Any]:
        """Return the seeds that are measured already: none unless resuming."""
        return dict(self.rows.get(name, {}).get("seeds", {})) if self.resume else {}

    def measured(
        self,
        name: str,
        about: Mapping[str, Any],
        begun: Mapping[str, Any],
        seeds: Iterable[int],
        run: Callable[[int], Score],
        more: Callable[[], Mapping[str, Any]] = dict,
    ) -> dict[str, Any]:
        """Run seeds that are not begun; return the row, which is written after every seed.

        Args:
            more: what the row says of a seed besides its score.

        Raises:
            BudgetExceededError: a training spent more than `about["epsilon"]`.
        """
        found = dict(begun)
        for seed in seeds:
            if str(seed) not in found:
                score, allowed = run(seed), about.get("epsilon")
                if allowed is not None and (score.epsilon is None or score.epsilon > allowed):
                    raise BudgetExceededError(f"{name}: ε = {score.epsilon} was spent of {allowed}")
                found[str(seed)] = asdict(score) | dict(more())
            self.put(name, dict(about) | summary(found) | {"seeds": found})
        return self.rows[name]


def measure(
    rows: Rows,
    name: str,
    about: Mapping[str, Any],
    space: Space,
    run: Run,
    *,
    seeds: Iterable[int],
    trials: int,
    choose_once: bool = False,
) -> dict[str, Any]:
    """Choose and test for each seed; return the row, see `Rows.measured`.

    Args:
        choose_once: only for the first seed; sound where all seeds have one test part.
    """
    begun, chosen = rows.begun(name), None
    for earlier in begun.values() if choose_once else ():
        chosen = Trial(earlier["settings"], earlier["validation"])

    def once(seed: int) -> Score:
        nonlocal chosen
        if chosen is None or not choose_once:
            chosen = best(search(space, run, trials, seed))
        return run(chosen.settings, seed, "test")

    def choice() -> Mapping[str, Any]:
        return {} if chosen is None else {"validation": chosen.value, "settings": chosen.settings}

    return rows.measured(name, dict(about) | {"trials": trials}, begun, seeds, once, choice)


class BudgetExceededError(Exception):
    """The ledger of a training says more than its budget."""


def summary(measured: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return mean and standard deviation over seeds, and the median of seconds."""
    values = [seed["value"] for seed in measured.values()]
    spread = 0.0 if len(values) == 1 else math.nan
    if len(values) > 1 and all(map(math.isfinite, values)):
        spread = statistics.stdev(values)
    return {
        "mean": statistics.mean(values),
        "std": spread,
        "seconds": statistics.median(seed["seconds"] for seed in measured.values()),
    }


def cell(row: Mapping[str, Any] | None) -> str:
    """Return `mean ± std` in per cent, of a row that may be missing."""
    return "–" if row is None else f"{100 * row['mean']:.1f} ± {100 * row['std']:.1f}"


def table(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(line(*cells) for cells in (heading, ["---"] * len(heading), *lines))
