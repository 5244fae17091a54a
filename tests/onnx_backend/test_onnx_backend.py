"""Whatever is imported of the onnx package's test cases computes what they expect; what is refused is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from onnx import defs

from lipcompile.diagnostics import InputError, Severity
from lipcompile.frontends.onnx.operators import IMPORTERS, NEWEST, PARTS, PLACING
from lipcompile.frontends.onnx.refused import LATER, NEVER, OF_CONSTANTS
from lipcompile.pipeline import check
from tests.nights import by_day
from tests.onnx_backend import cases, record
from tests.onnx_backend.cases import Case
from tests.onnx_backend.comparing import WRONG, outcomes
from tests.onnx_backend.figures import versions


def agree(found: Iterable[Case], folder: Path) -> None:
    """Compare cases with their references, and their outcomes with the record."""
    seen = [outcome for case in found for outcome in outcomes(case, folder)]
    assert not [(o.name, o.deciding) for o in seen if o.kind in WRONG]
    known = record.recorded()
    if known is not None:
        expected = {record.brief(text) for text in known}
        lines = [record.line(outcome) for outcome in seen]
        assert [text for text in lines if record.brief(text) not in expected] == []


def few_of_each(found: Iterable[Case], most: int | None) -> Iterator[Case]:
    """Yield the first cases of each set of operators."""
    seen: Counter[tuple[str, ...]] = Counter()
    for case in found:
        kinds = tuple(sorted({node.op_type for node in case.model.graph.node}))
        seen[kinds] += 1
        if most is None or seen[kinds] <= most:
            yield case


@pytest.mark.slow
@pytest.mark.parametrize("most", by_day([3], [3, None]))
def test_stored_models(most: int | None, tmp_path: Path) -> None:
    agree(few_of_each(cases.stored_cases(), most), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("most", by_day([3], [3, None]))
@pytest.mark.filterwarnings("ignore")  # of the code that makes the cases
def test_operators(most: int | None, tmp_path: Path) -> None:
    agree(few_of_each((case for case in cases.node_cases() if "_expanded" not in case.name), most), tmp_path)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_operators_written_out(tmp_path: Path) -> None:
    agree((case for case in cases.node_cases() if "_expanded" in case.name), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(path.stem for path in (cases.DATA / "light").glob("*.onnx")))
def test_networks_of_full_size(name: str, tmp_path: Path) -> None:
    agree((case for case in cases.light_cases() if case.name == name), tmp_path)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_every_case_as_it_ships_is_accepted_or_refused_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for case in (*cases.stored_cases(), *cases.node_cases()):
        path.write_bytes(case.model.SerializeToString())
        try:
            derivation = check(str(path))
        except InputError as error:
            found, accepted = error.diagnostics, False
        else:
            found, accepted = derivation.diagnostics, derivation.ok
        assert accepted or any(d.severity == Severity.ERROR and d.message for d in found), case.name


# What the tables say of operators


def test_every_operator_is_imported_or_refused_with_a_reason() -> None:
    tables = [set(IMPORTERS), set(NEVER), set(LATER), set(OF_CONSTANTS)]
    known = set().union(*tables)
    assert sum(map(len, tables)) == len(known)  # none is in two
    if defs.onnx_opset_version() == record.NEWEST_SET:
        assert known == set(versions())


def test_the_newest_definition_of_every_imported_operator_has_been_read() -> None:
    assert (set(IMPORTERS) | PARTS | PLACING) <= set(NEWEST) | {"Erf"}
    if defs.onnx_opset_version() == record.NEWEST_SET:
        newest = versions()
        assert {name: newest[name] for name in NEWEST} == NEWEST
