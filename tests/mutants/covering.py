"""Which files are mutated, how, and which tests must see it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

TORCH = "backends/lipcompile_torch"


class Covered(NamedTuple):
    """How a file is tested.

    Args:
        tests: those that must go red, the quickest and nearest first.
        terms_alone: mutate terms and constants that round outward; else extremes and comparisons as well.
    """

    tests: tuple[str, ...]
    terms_alone: bool = False


_TESTS = Path(__file__).parents[1]
_FOLDERS = {path.stem: path.parent.relative_to(_TESTS.parent) for path in _TESTS.glob("torch/*/test_*.py")}


def _torch(*names: str) -> tuple[str, ...]:
    return tuple(f"{_FOLDERS[f'test_{name}']}/test_{name}.py" for name in names)


# Certificates: all that may make a bound too small.
CERTIFICATES = {
    f"{TORCH}/certify/rounding.py": _torch("rounding", "rounding_norms", "rounding_single", "drift"),
    f"{TORCH}/certify/norms.py": _torch("rounding_norms", "norms", "projection"),
    f"{TORCH}/certify/single_precision.py": _torch("rounding_single", "spectra", "drift", "native"),
    f"{TORCH}/certify/drift.py": _torch("rounding_drift", "drift"),
    f"{TORCH}/certify/projection.py": _torch("rounding_projection", "projection"),
    f"{TORCH}/certify/operators.py": _torch("rounding_operators", "norms"),
    f"{TORCH}/certify/constraints.py": _torch("rounding_projection", "constraints", "projection"),
    f"{TORCH}/certify/intervals.py": _torch("intervals", "robustness"),
    f"{TORCH}/deploy/robustness.py": _torch("rounding_robustness", "robustness"),
    f"{TORCH}/certify/precision.py": _torch(
        "rounding_noise", "roundings", "library_functions", "noise", "training", "functional", "loopholes"
    ),
    f"{TORCH}/certify/ball.py": _torch("functional", "clipped", "native"),
    f"{TORCH}/nn/functional.py": _torch("functional", "clipped", "native"),
    f"{TORCH}/train/checks.py": _torch(
        *("rounding_noise", "clip_thresholds", "misuse", "loopholes", "roundings", "engine")
    ),
    f"{TORCH}/train/loss_clipping.py": _torch("rounding_noise", "loss_clipping", "clip_thresholds"),
    f"{TORCH}/noise/mechanism.py": _torch("rounding_noise", "noise", "lanes", "streams", "loopholes"),
    f"{TORCH}/noise/normals.py": _torch("rounding_noise", "normals"),
    f"{TORCH}/train/clipped.py": _torch("clipped"),
    f"{TORCH}/clip/clipping.py": _torch("rounding_clips", "clipping"),
    f"{TORCH}/clip/bookkeeping.py": _torch("rounding_clips", "clipping"),
    f"{TORCH}/clip/factors.py": _torch("rounding_clips", "clipping"),
    f"{TORCH}/clip/example_gradients.py": _torch("example_gradients"),
    f"{TORCH}/clip/native_gradients.py": _torch("example_gradients"),
    f"{TORCH}/nn/constrained.py": _torch("certificate", "checkpoint", "layers"),
    f"{TORCH}/train/sums.py": _torch("released_sums"),
    "lipcompile/learn/scaling.py": ("tests/learn/test_scaling.py", "tests/learn/test_fitting.py"),
    "lipcompile/learn/features.py": ("tests/learn/test_features.py", "tests/learn/test_fitting.py"),
    "lipcompile/learn/account.py": ("tests/learn/test_fitting.py",),
    "backends/lipcompile_privacy/selection.py": ("tests/privacy/test_selection.py",),
    "lipcompile/ops/norms.py": (
        "tests/numbers/test_certified_rounding.py",
        "tests/numbers/test_certified_norms.py",
    ),
    "lipcompile/numbers/certified.py": (
        "tests/numbers/test_certified_rounding.py",
        "tests/numbers/test_domains.py",
        "tests/numbers/test_powers.py",
    ),
    "lipcompile/numbers/rounding.py": ("tests/numbers/test_certified_rounding.py",),
    "lipcompile/numbers/simplify.py": ("tests/numbers/test_domains.py", "tests/analysis/test_disjoint_parts.py"),
    "lipcompile/numbers/closed_form.py": (
        "tests/analysis/test_closed_forms.py",
        "tests/analysis/test_loop_mutations.py",
    ),
    "lipcompile/ops/counting.py": ("tests/ops/test_counting.py",),
    "backends/lipcompile_verify/intervals.py": ("tests/verify/test_intervals.py", "tests/verify/test_by_hand.py"),
    "backends/lipcompile_verify/scattering.py": ("tests/verify/test_intervals.py", "tests/verify/test_by_hand.py"),
    "backends/lipcompile_verify/losses.py": ("tests/verify/test_by_hand.py",),
    "backends/lipcompile_verify/windows.py": ("tests/verify/test_by_hand.py",),
    "backends/lipcompile_verify/check.py": ("tests/verify/test_intervals.py", "tests/verify/test_training.py"),
    "backends/lipcompile_verify/emitted.py": ("tests/verify/test_intervals.py", "tests/verify/test_emitted.py"),
    "backends/lipcompile_verify/spelling.py": ("tests/verify/test_intervals.py", "tests/verify/test_emitted.py"),
}
# What uses certificates, or looks for what breaks them.
OTHERS = {
    f"{TORCH}/train/module.py": _torch("rounding_noise", "module"),
    f"{TORCH}/train/gradients.py": _torch("rounding_noise", "engine", "misuse"),
    f"{TORCH}/noise/streams.py": _torch("rounding_noise", "streams"),
    f"{TORCH}/nn/regression.py": _torch("losses"),
    f"{TORCH}/noise/processor.py": _torch("native", "normals"),
    "backends/lipcompile_privacy/guesses.py": ("tests/privacy/test_guesses.py",),
    f"{TORCH}/deploy/certification.py": _torch("robustness"),
    f"{TORCH}/audit/search.py": ("tests/cli/test_audit.py",),
    f"{TORCH}/audit/points.py": ("tests/cli/test_audit.py",),
    f"{TORCH}/nn/scattering.py": _torch("scattering"),
}
# Native code.
KERNELS = {
    f"{TORCH}/native/kernels/example_gradients.c": _torch("example_gradients"),
    f"{TORCH}/native/kernels/gram.c": _torch("rounding_kernels", "drift", "native"),
    f"{TORCH}/native/kernels/spectra.c": _torch("rounding_kernels", "spectra"),
    f"{TORCH}/native/kernels/sums.c": _torch("rounding_kernels", "native", "functional"),
    f"{TORCH}/native/kernels/difference.c": _torch("rounding_kernels", "native"),
    f"{TORCH}/native/kernels/normals.c": _torch("native"),
}
COVERED = {
    **{file: Covered(tests) for file, tests in CERTIFICATES.items()},
    **{file: Covered(tests, terms_alone=True) for file, tests in OTHERS.items()},
    **{file: Covered(tests) for file, tests in KERNELS.items()},
}
# Functions that guess where an eigenvalue lies: nothing is promised of what they return.
GUESSES = {
    f"{TORCH}/certify/norms.py": {"_lanczos", "guess_eigenvalue"},
    f"{TORCH}/certify/single_precision.py": {"_guess", "_ByTorch.guess"},
    "lipcompile/ops/norms.py": {"_guess", "_stack_estimate"},
    f"{TORCH}/native/kernels/spectra.c": {
        *("multiply", "inner", "add_multiple", "divide", "reaches_above", "largest_eigenvalue", "guess_block"),
    },
}
