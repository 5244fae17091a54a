"""`python -m lipcompile_verify CERTIFICATE [--module FILE.py | --model FILE.onnx]`: 0 if all holds, 1 if not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .check import Problem, Verdict, verify
from .document import MalformedError
from .files import check_model, check_module, read_certificate


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the files that the arguments name, and print what was found."""
    parser = argparse.ArgumentParser("lipcompile_verify", description="Re-derives every bound of a certificate.")
    parser.add_argument(
        "certificate", type=Path, help="a .json file, or an emitted .py or an .onnx that carries one"
    )
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--module", type=Path, metavar="FILE.py", help="check that this emitted file is its model")
    model.add_argument("--model", type=Path, metavar="FILE.onnx", help="check that this file goes with it")
    verdict = judge(parser.parse_args(arguments))
    print(report(verdict))
    return 0 if verdict.ok else 1


def judge(options: argparse.Namespace) -> Verdict:
    """Return the verdict on a certificate, and on what goes with it."""
    try:
        document = read_certificate(options.certificate)
        verdict = verify(document)
        if verdict.ok and options.module is not None:
            verdict.problems += check_module(options.module, document)
        if verdict.ok and options.model is not None:
            verdict.problems += check_model(options.model, document)
        return verdict
    except (MalformedError, OSError) as error:
        return Verdict([Problem("file", "schema", str(error))])


def report(verdict: Verdict) -> str:
    """Return the verdict as lines of text."""
    lines = [f"error: {problem}" for problem in verdict.problems]
    lines += [f"loose: {claim}" for claim in verdict.loose]
    lines += [f"K {name} <= {bound!r}" for name, bound in verdict.gradient.items()]
    lines += [f"{name} <= {bound!r}" for name, bound in verdict.totals.items()]
    counted = ", ".join(f"{count} {what}" for what, count in verdict.counts.items())
    return "\n".join([*lines, f"{'verified' if verdict.ok else 'REFUSED'}: {counted}"])


if __name__ == "__main__":
    sys.exit(main())
