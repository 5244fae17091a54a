"""What bought how much: the settings that were chosen for a set, changed one at a time, on its validation part.

    python -m benchmarks.utility.ablation --data FOLDER --rows benchmarks/utility_tabular.json [--sets NAME …]
        [--seeds 3] [--json FILE]

The other settings stay as they were chosen with the one that is changed, so this shows what would be lost without
it, not what it could gain if all were chosen anew. No test part is looked at.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.utility.sets import SETS, load
from benchmarks.utility.study import Rows, Run, Settings, cell, table
from benchmarks.utility.tabular import runner

CHANGES: Mapping[str, Settings] = {
    "as chosen": {},
    "not standardised": {"standardise": "none"},
    "means alone": {"standardise": "mean"},
    "plain features": {"features": "plain"},
    "random features": {"features": "fourier"},
    "both": {"features": "both"},
    "directions of all coordinates": {"directions": "all"},
    "directions of few": {"directions": "few"},
    "loss not clipped": {"loss_clip": 1.0},
    "loss clipped at 0.1": {"loss_clip": 0.1},
    "no momentum": {"momentum": 0.0},
    "last weights": {"average": 0.0},
    "30 steps": {"steps": 30},
}


def ablate(run: Run, chosen: Settings, seeds: int) -> dict[str, dict[str, float]]:
    """Return the validation score of every change, with the mean and deviation over seeds.

    Steps keep their length: the agitation is multiplied by the clip that the trainer divides it by, where the clip
    changes, and by 1 - momentum where that does. A change that changes nothing is left out.
    """
    found = {}
    for name, change in CHANGES.items():
        settings = chosen | change
        if change and settings == chosen:
            continue
        kept = settings["loss_clip"] * (1 - settings["momentum"])
        settings["agitation"] *= kept / (chosen["loss_clip"] * (1 - chosen["momentum"]))
        values = [run(settings, seed, "validation").value for seed in range(seeds)]
        spread = statistics.stdev(values) if seeds > 1 else 0.0
        found[name] = {"mean": statistics.mean(values), "std": spread}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", default=["campaign", "magic.gamma", "adult"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(arguments.rows.read_text(encoding="utf-8"))
    measured = found["rows"]
    rows = Rows(arguments.json, {"seeds": arguments.seeds, "part": "validation"})
    for which in (which for which in SETS if which.name in arguments.sets):
        chosen = measured[f"{which.name} / ours"]["seeds"]["0"]["settings"]
        run = runner(which, *load(which, arguments.data), "ours", found["settings"]["split"])
        rows.put(which.name, {"settings": chosen, "changes": ablate(run, chosen, arguments.seeds)})
    shown = [name for name in rows.rows if name in arguments.sets]
    changes = {name: rows.rows[name]["changes"] for name in shown}
    lines = [(change, *(cell(changes[name].get(change)) for name in shown)) for change in CHANGES]
    print(table(("", *shown), lines))


if __name__ == "__main__":
    main()
