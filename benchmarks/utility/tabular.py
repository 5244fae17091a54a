"""AUROC and accuracy on tabular sets, beside the papers and Opacus: see docs/utility.md.

    python -m benchmarks.utility.tabular --data FOLDER [--sets NAME …] [--methods ours opacus] [--seeds 5]
        [--trials 16] [--split 1] [--json FILE] [--resume]

FOLDER holds `tabular/` and `weightclip/`. A stratified fifth is the test part; settings are chosen with so many
trials on a stratified fifth of the rest, from one space for all sets, and ours and Opacus's have as many. Sets
below 20,000 rows, whose test parts are small, are split anew for each seed, with a choice of settings for each;
the others have one test part, and one choice, and seeds are of noise and sampling. `--split` draws all test parts
anew. Seeds make the runs repeatable, and these models not private.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.harness import Some, options
from benchmarks.utility import heads, opacus_runs
from benchmarks.utility.parts import LARGE, SPLIT, Parts, score, split
from benchmarks.utility.sets import SETS, Array, Labels, TabularSet, load
from benchmarks.utility.study import Part, Rows, Run, Score, Settings, Space, cell, measure, table
from benchmarks.utility.training import Budget

SMALL, REPEATS = 5000, 3  # validation parts of small sets are drawn so many times, within one trial
FITS = {"ours": heads.fit, "opacus": opacus_runs.fit}
SPACES: Mapping[str, Space] = {"ours": heads.SPACE, "opacus": opacus_runs.SPACE}


def runner(which: TabularSet, x: Array, y: Labels, method: str, drawing: int) -> Run:
    """Return what trains with given settings and scores.

    Args:
        drawing: of the test parts: seeds of splits are moved by 1000 for each.
    """
    budget = Budget(which.epsilon, which.delta)

    def once(parts: Parts, settings: Settings, seed: int, audit: bool) -> Score:
        output, spent = FITS[method](parts, settings, budget, seed, audit=audit)
        return replace(spent, value=score(which.metric, output, parts.y_seen))

    def run(settings: Settings, seed: int, part: Part) -> Score:
        outer = split(x, y, 1000 * drawing + (seed if len(y) < LARGE else SPLIT))
        if part == "test":
            return once(outer, settings, seed, True)
        repeats = REPEATS if len(y) < SMALL else 1
        inner = (split(outer.x, outer.y, 1000 * drawing + 100 * seed + 50 + repeat) for repeat in range(repeats))
        return Score(mean(once(p, settings, 1000 * seed + 50 + i, False).value for i, p in enumerate(inner)))

    return run


def about(which: TabularSet, method: str) -> dict[str, Any]:
    """Return what a row says of itself."""
    return {
        "set": which.name,
        "method": method,
        "metric": which.metric,
        "epsilon": which.epsilon,
        "delta": which.delta,
        "paper": {"clipped": which.clipped, "clipless": which.clipless},
    }


def tables(rows: Mapping[str, Mapping[str, Any]], sets: Sequence[TabularSet]) -> str:
    """Return a table for each metric."""
    parts = []
    for metric, names in (("auroc", ("DP-SGD", "clipless")), ("accuracy", ("DP-SGD", "Lip-DP-SGD"))):
        lines = [
            (
                which.name,
                f"{which.epsilon:g}",
                f"{which.delta:.2g}",
                f"{which.clipped:.1f}",
                f"{which.clipless:.1f}",
                cell(rows.get(f"{which.name} / opacus")),
                cell(ours := rows.get(f"{which.name} / ours")),
                "" if ours is None else ("yes" if round(100 * ours["mean"], 1) >= which.target else "no"),
            )
            for which in sets
            if which.metric == metric
        ]
        heading = (metric, "ε", "δ", f"paper: {names[0]}", f"paper: {names[1]}", "Opacus", "ours", "reached")
        parts.append(table(heading, lines))
    return "\n\n".join(parts)


def main(sets: Sequence[TabularSet] = SETS) -> None:
    """Measure and print."""
    names, methods = Some([which.name for which in sets]), Some([*FITS])
    more: dict[str, Any] = {"seeds": 5, "trials": 16, "split": 1, "json": Path, "resume": False}
    arguments = options(__doc__, data=..., sets=names, methods=methods, **more)
    torch.set_num_threads(1)
    rows = Rows(arguments.json, {"test_share": 0.2, "split": arguments.split}, arguments.resume)
    for which in (which for which in sets if which.name in arguments.sets):
        x, y = load(which, arguments.data)
        for method in arguments.methods:
            name = f"{which.name} / {method}"
            row = measure(
                rows,
                name,
                about(which, method),
                SPACES[method],
                runner(which, x, y, method, arguments.split),
                seeds=range(arguments.seeds),
                trials=arguments.trials,
                choose_once=len(y) >= LARGE,
            )
            print(f"{name:28} {cell(row)}   {row['seconds']:.1f} s", flush=True)
    print(tables(rows.rows, [which for which in sets if which.name in arguments.sets]))


if __name__ == "__main__":
    main()
