"""Which files are mutated, how, and which tests must see it."""

from __future__ import annotations

from typing import NamedTuple

RUNTIME = "backends/lipcompile_torch/runtime"


class Covered(NamedTuple):
    """How a file is tested.

    Args:
        tests: those that must go red, the quickest and nearest first.
        terms_alone: mutate terms and constants that round outward; else extremes and comparisons as well.
    """

    tests: tuple[str, ...]
    terms_alone: bool = False


def _runtime(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/runtime/test_{name}.py" for name in names)


# Certificates: all that may make a bound too small.
CERTIFICATES = {
    f"{RUNTIME}/rounding.py": _runtime("rounding", "rounding_norms", "rounding_single", "drift"),
    f"{RUNTIME}/gram.py": _runtime("rounding_norms", "gram", "norms"),
    f"{RUNTIME}/norms.py": _runtime("rounding_norms", "norms", "projection"),
    f"{RUNTIME}/single.py": _runtime("rounding_single", "drift", "native"),
    f"{RUNTIME}/spectra.py": _runtime("rounding_single", "spectra"),
    f"{RUNTIME}/drift.py": _runtime("rounding_drift", "drift"),
    f"{RUNTIME}/projection.py": _runtime("rounding_projection", "projection"),
    f"{RUNTIME}/operators.py": _runtime("rounding_operators", "norms"),
    f"{RUNTIME}/constraints.py": _runtime("rounding_projection", "constraints", "projection"),
    f"{RUNTIME}/intervals.py": _runtime("intervals", "robustness"),
    f"{RUNTIME}/robustness.py": _runtime("rounding_robustness", "robustness"),
    f"{RUNTIME}/precision.py": _runtime("rounding_noise", "noise", "training", "functional", "loopholes"),
    f"{RUNTIME}/functional.py": _runtime("functional", "clipped", "native"),
    f"{RUNTIME}/checks.py": _runtime(
        *("rounding_noise", "clip_thresholds", "misuse", "loopholes", "roundings", "engine")
    ),
    f"{RUNTIME}/loss_clipping.py": _runtime("rounding_noise", "loss_clipping", "clip_thresholds"),
    f"{RUNTIME}/noise.py": _runtime("rounding_noise", "noise", "lanes", "streams", "loopholes"),
    f"{RUNTIME}/normals.py": _runtime("rounding_noise", "normals"),
    f"{RUNTIME}/clipped.py": _runtime("clipped"),
    f"{RUNTIME}/clipping.py": _runtime("rounding_clips", "clipping"),
    f"{RUNTIME}/uses.py": _runtime("rounding_clips", "clipping"),
    f"{RUNTIME}/example_gradients.py": _runtime("example_gradients"),
    f"{RUNTIME}/native_gradients.py": _runtime("example_gradients"),
    f"{RUNTIME}/membership.py": _runtime("certificate", "checkpoint"),
    "lipcompile/norms.py": ("tests/test_certified_rounding.py", "tests/test_certified_norms.py"),
    "lipcompile/numbers/certified.py": (
        "tests/test_certified_rounding.py",
        "tests/test_domains.py",
        "tests/test_powers.py",
    ),
    "lipcompile/numbers/rounding.py": ("tests/test_certified_rounding.py",),
    "lipcompile/numbers/extremes.py": ("tests/test_domains.py", "tests/test_forms.py"),
    "lipcompile/numbers/closed_form.py": ("tests/test_closed_forms.py", "tests/test_loop_mutations.py"),
    "backends/lipcompile_verify/intervals.py": ("tests/verify/test_intervals.py", "tests/verify/test_by_hand.py"),
    "backends/lipcompile_verify/scattering.py": ("tests/verify/test_intervals.py", "tests/verify/test_by_hand.py"),
    "backends/lipcompile_verify/check.py": ("tests/verify/test_intervals.py", "tests/verify/test_training.py"),
    "backends/lipcompile_verify/emitted.py": ("tests/verify/test_intervals.py", "tests/verify/test_emitted.py"),
    "backends/lipcompile_verify/spelling.py": ("tests/verify/test_intervals.py", "tests/verify/test_emitted.py"),
}
# What uses certificates, or looks for what breaks them.
OTHERS = {
    f"{RUNTIME}/roundings.py": _runtime("roundings"),
    f"{RUNTIME}/module.py": _runtime("rounding_noise", "module"),
    f"{RUNTIME}/gradients.py": _runtime("rounding_noise", "engine", "misuse"),
    f"{RUNTIME}/streams.py": _runtime("rounding_noise", "streams"),
    f"{RUNTIME}/regression.py": _runtime("losses"),
    f"{RUNTIME}/box_muller.py": _runtime("native", "normals"),
    "backends/lipcompile_privacy/guesses.py": _runtime("guesses"),
    f"{RUNTIME}/adversarial.py": _runtime("robustness"),
    f"{RUNTIME}/audit.py": ("tests/test_audit.py",),
    f"{RUNTIME}/audit_points.py": ("tests/test_audit.py",),
    f"{RUNTIME}/scattering.py": _runtime("scattering"),
}
# Native code.
KERNELS = {
    f"{RUNTIME}/kernels/example_gradients.c": _runtime("example_gradients"),
    f"{RUNTIME}/kernels/gram.c": _runtime("rounding_kernels", "drift", "native"),
    f"{RUNTIME}/kernels/spectra.c": _runtime("rounding_kernels", "spectra"),
    f"{RUNTIME}/kernels/sums.c": _runtime("rounding_kernels", "native", "functional"),
    f"{RUNTIME}/kernels/difference.c": _runtime("rounding_kernels", "native"),
    f"{RUNTIME}/kernels/normals.c": _runtime("native"),
}
COVERED = {
    **{file: Covered(tests) for file, tests in CERTIFICATES.items()},
    **{file: Covered(tests, terms_alone=True) for file, tests in OTHERS.items()},
    **{file: Covered(tests) for file, tests in KERNELS.items()},
}
# Functions that guess where an eigenvalue lies: nothing is promised of what they return.
GUESSES = {
    f"{RUNTIME}/norms.py": {"_lanczos", "guess_eigenvalue"},
    f"{RUNTIME}/single.py": {"_guess"},
    f"{RUNTIME}/spectra.py": {"_ByTorch.guess"},
    "lipcompile/norms.py": {"_guess"},
    f"{RUNTIME}/kernels/spectra.c": {
        *("multiply", "inner", "add_multiple", "divide", "reaches_above", "largest_eigenvalue", "guess_block"),
    },
}
