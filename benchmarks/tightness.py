"""How much of each gradient bound can be attained, beside what lip-dp claims for the same network.

    python -m benchmarks.tightness [--only NAME …] [--restarts 4] [--steps 100] [--enough 0.95] [--json FILE]

An adversary (`lipcompile audit`) climbs the gradient norm of one example over input, label and weights, and
attacks parameters alone whose ratio is below `--enough`.
Claims of lip-dp are in lipdp_bounds.json; one that the adversary exceeds is marked `broken`: there, a smaller
number is no merit. All networks have input norm 1 and cross entropy at temperature 1. The exit code is 1 if a
bound of ours was exceeded, or is larger than one of lip-dp that was not.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lipcompile_torch.audit.points import Admissible
from lipcompile_torch.audit.search import Audit, AuditConfig, audit

from benchmarks.harness import Some, emitted, options, save, written

CLAIMS = json.loads((Path(__file__).parent / "lipdp_bounds.json").read_text())["architectures"]

RESIDUAL = "repeat 4 { residual(%s) { dense(128); groupsort(2) } }"
CONVNET = """input x: tensor[1, 28, 28], norm <= 1
    conv2d(32, kernel=3, padding=%s); groupsort(2); l2_pool(2)
    conv2d(64, kernel=3, padding=%s); groupsort(2); l2_pool(2)
    flatten; dense(512); groupsort(2); dense(10)"""


def vgg(second: str) -> str:
    """Return three pairs of convolutions; `second` is how the second of each goes on."""
    pairs = [
        f"conv2d({width}, kernel=3, padding=1); groupsort(2); conv2d({width}, kernel=3, {second}"
        for width in (32, 64, 128)
    ]
    return "\n".join(
        ["input x: tensor[3, 32, 32], norm <= 1", *pairs, "flatten; dense(256); groupsort(2); dense(10)"]
    )


NETWORKS = {
    "mlp": "input x: tensor[784], norm <= 1; dense(256); groupsort(2); dense(256); groupsort(2); dense(10)",
    "convnet_same": CONVNET % (1, 1),
    "convnet_valid": CONVNET % (0, 0),
    "residual_add": f"input x: tensor[784], norm <= 1; dense(128); {RESIDUAL % 'add'}; dense(10)",
    "residual_add_alone": f"input x: tensor[128], norm <= 1; {RESIDUAL % 'add'}; dense(10)",
    "residual_mean": f"input x: tensor[784], norm <= 1; dense(128); {RESIDUAL % 'mean'}; dense(10)",
    "residual_mean_alone": f"input x: tensor[128], norm <= 1; {RESIDUAL % 'mean'}; dense(10)",
    "vgg_pool": vgg("padding=1); groupsort(2); l2_pool(2)"),
    "vgg_strided": vgg("stride=2, padding=((0, 1), (0, 1))); groupsort(2)"),
    "strided": """input x: tensor[3, 32, 32], norm <= 1
        conv2d(32, kernel=3, stride=2, padding=((0, 1), (0, 1))); groupsort(2)
        conv2d(64, kernel=3, stride=2, padding=((0, 1), (0, 1))); groupsort(2); flatten; dense(10)""",
    "small_images": """input x: tensor[8, 2, 2], norm <= 1
        conv2d(16, kernel=3, padding=1); groupsort(2); conv2d(16, kernel=3, padding=1); groupsort(2); flatten
        dense(10)""",
    "two_classes": "input x: tensor[784], norm <= 1; dense(256); groupsort(2); dense(2)",
    "concat": """input x: tensor[64], norm <= 1; stem = dense(64)
        branch { dense(64); groupsort(2) } { dense(64); groupsort(2) } -> concat
        dense(10)""",
}


@dataclass(frozen=True)
class Row:
    """One parameter, or the total."""

    name: str
    claimed: float
    attained: float
    peer: float | None

    @property
    def broken(self) -> bool:
        """Whether the peer's claim is exceeded by a gradient that was found."""
        return self.peer is not None and self.attained > self.peer * (1 + 1e-6)

    @property
    def wrong(self) -> bool:
        """Whether our claim is exceeded, or needlessly larger than the peer's."""
        worse = self.peer is not None and not self.broken and self.claimed > self.peer * (1 + 1e-6)
        return worse or self.attained > self.claimed * (1 + 1e-9)

    def text(self) -> str:
        """Return the row of the table."""
        cells = f"  {self.name:18} {self.claimed:9.4f} {self.attained:9.4f} {self.attained / self.claimed:8.3f}"
        if self.peer is None:
            return cells
        mark = f"  broken: {self.attained / self.peer:.2f} times it was attained" if self.broken else ""
        return f"{cells} {self.peer:9.4f} {self.claimed / self.peer:11.3f}{mark}"

    def record(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "name": self.name,
            "claimed": self.claimed,
            "attained": self.attained,
            "ratio": self.attained / self.claimed,
            "lip_dp": self.peer,
            "lip_dp_broken": self.broken,
        }


class Progress:
    """Says on stderr how an audit goes."""

    def __init__(self, name: str) -> None:
        self.name, self.start = name, time.monotonic()

    def planned(self, ascents: int) -> None:
        """There will be so many ascents."""
        print(f"{self.name}: {ascents} ascents", file=sys.stderr)

    def climbed(self, objective: str, ratio: float) -> None:
        """An ascent ended."""
        print(f"{self.name}: {time.monotonic() - self.start:6.0f} s  {objective} {ratio:.4f}", file=sys.stderr)


def build(name: str) -> Any:
    """Compile a network and return it in float64."""
    with written(f"model {name} {{\n{NETWORKS[name]}\nloss cross_entropy\n}}\n") as path:
        model = emitted(path)
    torch.manual_seed(0)
    return model().double()


def rows(found: Audit, peer: Mapping[str, Any] | None) -> list[Row]:
    """Pair what was found with the claims of lip-dp: parameters and layers are both in forward order."""
    claims = [layer["bound"] for layer in peer["layers"]] if peer else [None] * len(found.parameters)
    pairs = zip(found.parameters.items(), claims, strict=True)
    by_parameter = [Row(name, one.claimed, one.attained, claim) for (name, one), claim in pairs]
    return [
        *by_parameter,
        Row("total", found.total.claimed, found.total.attained, peer["total"] if peer else None),
    ]


def main() -> None:
    """Measure and print."""
    arguments = options(__doc__, only=Some([*NETWORKS]), restarts=4, steps=100, enough=0.95, threads=2, json=Path)
    torch.set_num_threads(arguments.threads)
    config = AuditConfig(arguments.restarts, arguments.steps, enough=arguments.enough)
    header = f"{'':20} {'claimed':>9} {'attained':>9} {'ratio':>8} {'lip-dp':>9} {'ours/lip-dp':>11}"
    results, wrong = {}, False
    for name in arguments.only:
        table = rows(audit(build(name), Admissible(), config, Progress(name)), CLAIMS.get(name))
        print("\n".join([header, name, *(row.text() for row in table), ""]), flush=True)
        results[name] = [row.record() for row in table]
        wrong = wrong or any(row.wrong for row in table)
        save(arguments.json, results)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
