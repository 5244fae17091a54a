"""The ledger: never a step too few, whatever happens to the process, the disk or the clock."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lipcompile_privacy.accounting import Mechanism, NeighbouringRelation, RandomAllocation, epsilon
from lipcompile_torch.train.ledger import Ledger, LedgerError, read_ledger

ADD = NeighbouringRelation.ADD_REMOVE
MECHANISM, OTHER = Mechanism(0.1, 1.5), Mechanism(0.2, 0.75)
EPOCH = RandomAllocation(5, 1.5)
HERE = Path(__file__).parents[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def write(path: Path, steps: int, *mechanisms: Mechanism | RandomAllocation) -> None:
    ledger = Ledger(path, ADD, 100)
    for mechanism in mechanisms or (MECHANISM,):
        ledger.declare(mechanism)
        for _ in range(steps):
            ledger.record_step(mechanism)
    ledger.close()


def test_what_is_written_is_read(path: Path) -> None:
    write(path, 3, MECHANISM, OTHER)
    record = read_ledger(path)
    assert dict(record.steps) == {MECHANISM: 3, OTHER: 3}
    assert (record.relation, record.dataset_size, record.seeded, record.interrupted) == (ADD, 100, False, False)
    assert record.epsilon(1e-5, "rdp") == epsilon([(OTHER, 3), (MECHANISM, 3)], 1e-5, ADD, "rdp")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["header", *(["mechanism"] + ["step"] * 3) * 2]
    assert lines[2]["sampling_rate"] == 0.1
    assert lines[2]["noise_multiplier"] == 1.5


def test_an_existing_ledger_is_continued(path: Path) -> None:
    for _ in range(3):
        write(path, 2)
    assert read_ledger(path).total_steps == 6


def test_memory_and_file_agree(path: Path) -> None:
    memory = Ledger(None, ADD, 100)
    memory.declare(MECHANISM)
    for _ in range(5):
        memory.record_step(MECHANISM)
    write(path, 5)
    assert memory.record.steps == read_ledger(path).steps
    assert memory.epsilon(1e-5, "rdp") == read_ledger(path).epsilon(1e-5, "rdp")


def test_steps_need_a_declared_mechanism(path: Path) -> None:
    ledger = Ledger(path, ADD, 100)
    with pytest.raises(LedgerError, match="not declared"):
        ledger.record_step(MECHANISM)
    ledger.close()
    with pytest.raises(LedgerError, match="was closed"):
        ledger.declare(MECHANISM)


def test_every_truncation_is_tolerated_and_counts_no_step_too_few(path: Path, tmp_path: Path) -> None:
    write(path, 2, MECHANISM, OTHER)
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    kinds = [json.loads(line)["kind"] for line in content.splitlines()]
    cut = tmp_path / "cut.jsonl"
    for length in range(ends[0], len(content) + 1):
        cut.write_bytes(content[:length])
        complete = sum(end <= length for end in ends)
        whole = kinds[:complete].count("step")
        partial = length not in ends
        declared = kinds[:complete].count("mechanism")
        record = read_ledger(cut)
        assert record.interrupted == partial
        assert record.total_steps == whole + (declared if partial else 0)
        if length % 31 == 0 or length in ends:
            Ledger(cut, ADD, 100).close()  # fixes what was cut off; the chain goes on
            assert read_ledger(cut).total_steps == record.total_steps
            assert not read_ledger(cut).interrupted


def test_a_tail_of_zeros_as_power_cuts_leave_counts_and_is_fixed(path: Path) -> None:
    write(path, 2)
    with path.open("ab") as file:
        file.write(bytes(4096))
    assert read_ledger(path).total_steps == 3
    write(path, 1)
    assert read_ledger(path).total_steps == 4


def test_an_interrupted_fix_loses_nothing(path: Path) -> None:
    write(path, 2, MECHANISM, OTHER)
    path.write_bytes(path.read_bytes()[:-5])
    before = read_ledger(path).total_steps
    pwrite = os.pwrite

    def torn(file: int, data: bytes, offset: int) -> int:
        pwrite(file, data[: len(data) // 2], offset)
        raise OSError("power cut")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", torn)
        with pytest.raises(OSError, match="power cut"):
            Ledger(path, ADD, 100)
    assert read_ledger(path).total_steps >= before


@pytest.mark.parametrize("deaths", range(1, 9))
def test_a_fix_of_several_lines_that_is_interrupted_at_any_write_loses_none_of_them(
    path: Path, deaths: int
) -> None:
    """A line that is cut off may be a step of either mechanism, and stays so until both are written."""
    write(path, 2, MECHANISM, OTHER, EPOCH)
    path.write_bytes(path.read_bytes()[:-5])
    before = read_ledger(path).steps
    writes = 0

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def die(*arguments: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes == deaths:
                raise OSError("power cut")
            return call(*arguments)

        return die

    with pytest.MonkeyPatch.context() as patch:
        for name in ("pwrite", "fsync", "ftruncate"):
            patch.setattr(os, name, dying(getattr(os, name)))
        with pytest.raises(OSError, match="power cut"):
            Ledger(path, ADD, 100)
    after = read_ledger(path).steps
    assert all(after[release] >= count for release, count in before.items())


def test_what_keeps_nothing_is_no_ledger(path: Path) -> None:
    """A device that forgets what is written would let each process begin with the whole budget."""
    os.mkfifo(path)
    for place in (Path(os.devnull), path):
        with pytest.raises(LedgerError, match="is no file"):
            Ledger(place, ADD, 100)


def test_without_a_complete_header_there_is_no_ledger(path: Path) -> None:
    path.write_bytes(b'{"kind": "hea')
    with pytest.raises(LedgerError, match="no complete header"):
        read_ledger(path)
    path.write_bytes(b"")
    write(path, 1)  # an empty file, as mkstemp makes, is begun
    assert read_ledger(path).total_steps == 1


def test_any_changed_byte_is_found(path: Path, tmp_path: Path) -> None:
    write(path, 2)
    content = path.read_bytes()
    changed = tmp_path / "changed.jsonl"
    rng = random.Random(0)
    for position in rng.sample(range(len(content) - 1), 200):
        altered = bytearray(content)
        altered[position] ^= 1 << rng.randrange(8)
        changed.write_bytes(altered)
        with pytest.raises(LedgerError):
            read_ledger(changed)


@pytest.mark.parametrize("edit", ["drop", "swap", "repeat", "insert"])
def test_lost_moved_and_added_lines_are_found(path: Path, edit: str) -> None:
    write(path, 4)
    lines = path.read_bytes().splitlines(keepends=True)
    edits = {
        "drop": lines[:3] + lines[4:],
        "swap": [*lines[:3], lines[4], lines[3], *lines[5:]],
        "repeat": [*lines, lines[-1]],
        "insert": [*lines[:3], b"\n", *lines[3:]],
    }
    path.write_bytes(b"".join(edits[edit]))
    with pytest.raises(LedgerError, match=r"line [0-9]: this line was changed"):
        read_ledger(path)


@pytest.mark.parametrize("content", [b"hello\n", b"[]\n", b'{"hash": 1}\n', b"\xff\xfe\n", b"null\nnull\n"])
def test_other_files_are_no_ledgers(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LedgerError):
        read_ledger(path)


def test_a_ledger_belongs_to_its_data_and_relation(path: Path) -> None:
    write(path, 1)
    for relation, size in ((ADD, 101), (NeighbouringRelation.REPLACE_ONE, 100)):
        with pytest.raises(LedgerError, match="belongs to 100 examples"):
            Ledger(path, relation, size)
    write(path, 1)  # the refusals released the lock


@pytest.mark.slow
def test_two_writers_are_refused_in_this_process_and_in_another(path: Path) -> None:
    first = Ledger(path, ADD, 100)
    with pytest.raises(LedgerError, match="in use"):
        Ledger(path, ADD, 100)
    code = (
        "import sys; from lipcompile_torch.train.ledger import *\n"
        "from lipcompile_privacy.accounting import NeighbouringRelation\n"
        "try: Ledger(sys.argv[1], NeighbouringRelation.ADD_REMOVE, 100)\n"
        "except LedgerError as error: sys.exit(7 if 'in use' in str(error) else 1)\n"
    )
    attempt = [sys.executable, "-c", code, str(path)]
    assert subprocess.run(attempt, check=False).returncode == 7
    first.close()
    assert subprocess.run(attempt, check=False).returncode == 0


@pytest.mark.parametrize("replaced", [False, True])
def test_a_ledger_that_is_taken_away_stops_the_training(path: Path, replaced: bool) -> None:
    """What it would go on writing would be in a file without a name: nobody would find it again."""
    write(path, 1)
    old = path.read_bytes()
    ledger = Ledger(path, ADD, 100)
    ledger.declare(MECHANISM)
    ledger.record_step(MECHANISM)
    path.rename(path.with_suffix(".moved"))
    if replaced:
        path.write_bytes(old)
    with pytest.raises(LedgerError, match="deleted, moved or replaced"):
        ledger.record_step(MECHANISM)
    path.with_suffix(".moved").replace(path)
    ledger.record_step(MECHANISM)
    ledger.close()
    assert read_ledger(path).total_steps == 3


def test_a_clock_that_goes_backwards_does_not_matter(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for now in (2e9, 1e9, -5.0):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        write(path, 1)
    assert read_ledger(path).total_steps == 3


def test_a_full_disk_stops_the_step_and_the_next_attempt_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(path, ADD, 100)
    ledger.declare(MECHANISM)
    pwrite = os.pwrite

    def full(file: int, data: bytes, offset: int) -> int:
        pwrite(file, data[:10], offset)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            ledger.record_step(MECHANISM)
    assert ledger.record.total_steps == 0
    ledger.record_step(MECHANISM)
    ledger.close()
    assert read_ledger(path).total_steps == 1


def test_a_seed_is_never_forgotten(path: Path) -> None:
    ledger = Ledger(path, ADD, 100)
    ledger.declare(MECHANISM, seeded=True)
    ledger.declare(MECHANISM)
    ledger.close()
    assert read_ledger(path).seeded


def test_generators_are_recorded_in_the_order_of_their_use(path: Path) -> None:
    ledger = Ledger(path, ADD, 100)
    ledger.declare(MECHANISM, generators=["SFC64"])
    ledger.declare(MECHANISM, generators=["ChaCha20", "AES-128-CTR"])
    ledger.declare(MECHANISM, generators=["SFC64"])
    ledger.close()
    expected = {"SFC64": False, "AES-128-CTR": True, "ChaCha20": True}
    assert list(read_ledger(path).cryptographic.items()) == list(expected.items())
    assert ledger.record.cryptographic == expected


def test_what_recorded_no_generator_is_read(path: Path) -> None:
    """As ledgers were written until 0.1.0, and then continued."""
    ledger = Ledger(path, ADD, 100)
    ledger._append({"kind": "mechanism", **MECHANISM.fields(), "seeded": False, "time": 0.0})
    ledger.close()
    assert read_ledger(path).cryptographic == {"unknown": None}
    again = Ledger(path, ADD, 100)
    again.declare(MECHANISM, generators=["AES-128-CTR"])
    again.close()
    assert read_ledger(path).cryptographic == {"unknown": None, "AES-128-CTR": True}


@pytest.mark.parametrize("generators", ["AES-128-CTR", [1], None])
def test_generators_that_are_no_names_are_no_ledger(path: Path, generators: object) -> None:
    ledger = Ledger(path, ADD, 100)
    ledger._append({"kind": "mechanism", **MECHANISM.fields(), "seeded": False, "generators": generators})
    ledger.close()
    with pytest.raises(LedgerError, match="line 2"):
        read_ledger(path)


def test_delta_is_recorded_as_it_was_given_last(path: Path) -> None:
    ledger = Ledger(path, ADD, 100)
    ledger.declare(MECHANISM)
    assert read_ledger(path).delta is None
    for delta in (1e-5, 1e-6):
        ledger.delta = delta
        ledger.declare(MECHANISM)
    ledger.delta = None
    ledger.declare(MECHANISM)
    ledger.close()
    assert read_ledger(path).delta == ledger.record.delta == 1e-6


@pytest.mark.parametrize("delta", ["1e-5", 1, 0.0, 1.5, float("nan"), [0.1]])
def test_a_delta_that_is_none_is_no_ledger(path: Path, delta: object) -> None:
    ledger = Ledger(path, ADD, 100)
    ledger._append({"kind": "mechanism", **MECHANISM.fields(), "seeded": False, "delta": delta})
    ledger.close()
    with pytest.raises(LedgerError, match="line 2"):
        read_ledger(path)


TRAIN = """
import runpy, sys, torch
from lipcompile_torch import PrivacyEngine
net = runpy.run_path(sys.argv[1])
engine = PrivacyEngine(ledger=sys.argv[2])
module = net["Net"]()
module, optimizer, loader = engine.make_private(
    module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), data_loader=net["make_loader"](),
    noise_multiplier=1.0)
released = open(sys.argv[3], "a")
while True:
    for x, y in loader:
        module.criterion(module(x), y).backward()
        before = module.outer.weight.detach().clone()
        optimizer.step()
        assert not torch.equal(before, module.outer.weight)
        released.write("x")
        released.flush()
"""


@pytest.mark.nightly
def test_killing_training_never_leaves_more_changes_than_steps(path: Path, tmp_path: Path) -> None:
    # Each change of the weights leaves a mark AFTER it happened: there may be more steps than marks, never fewer.
    marks = tmp_path / "marks"
    rng = random.Random(1)
    seen = 0
    for _ in range(3):
        arguments = [HERE / "private_net.py", path, marks]
        process = subprocess.Popen([sys.executable, "-c", TRAIN, *map(str, arguments)])
        deadline = time.monotonic() + 60
        while (marks.stat().st_size if marks.exists() else 0) <= seen and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        seen = marks.stat().st_size
        assert read_ledger(path).total_steps >= seen
    # At most one step a kill was counted and not marked, and one more if its line was cut off.
    assert 3 <= seen <= read_ledger(path).total_steps <= seen + 6


# --- rounds: one charge for several steps ---


def rounds(path: Path, steps: int = 3) -> Ledger:
    ledger = Ledger(path, ADD, 100)
    ledger.declare(EPOCH)
    ledger.open_round(EPOCH)
    for _ in range(steps):
        ledger.record_inner_step(EPOCH)
    return ledger


def test_a_round_is_charged_once_for_all_its_steps(path: Path) -> None:
    ledger = rounds(path)
    ledger.open_round(EPOCH)
    ledger.record_inner_step(EPOCH)
    ledger.close()
    record = read_ledger(path)
    assert (record.charges, record.steps, record.total_steps) == ({EPOCH: 2}, {EPOCH: 4}, 4)
    assert record.runs == [(EPOCH, 2)]


def test_steps_of_a_round_need_one_that_was_opened_here(path: Path) -> None:
    ledger = Ledger(path, ADD, 100)
    ledger.declare(EPOCH)
    with pytest.raises(LedgerError, match="no open round of"):
        ledger.record_inner_step(EPOCH)
    ledger.close()
    rounds(path).close()
    again = Ledger(path, ADD, 100)
    with pytest.raises(LedgerError, match="no open round of"):  # the round of a process ends with it
        again.record_inner_step(EPOCH)
    again.close()


def test_every_truncation_of_a_round_counts_no_charge_too_few(path: Path, tmp_path: Path) -> None:
    rounds(path).close()
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    declared, opened = ends[1], ends[2]
    for length in range(declared + 1, len(content)):
        cut = tmp_path / "cut.jsonl"
        cut.write_bytes(content[:length])
        record = read_ledger(cut)
        inside = length >= opened
        tail = content[max(end for end in ends if end <= length) : length]
        known = tail.startswith(b'{"kind": "inner"') or not tail
        assert record.charges[EPOCH] == (inside if known else 1 + inside)
        repaired = Ledger(cut, ADD, 100)
        assert repaired.record.charges == record.charges
        repaired.close()
        assert read_ledger(cut).charges == record.charges


def test_an_inner_step_without_its_round_is_no_ledger(path: Path) -> None:
    ledger = Ledger(path, ADD, 100)
    ledger.declare(EPOCH)
    ledger._append({"kind": "inner", "step": 1, **EPOCH.fields()})
    ledger.close()
    with pytest.raises(LedgerError, match="line 3"):
        read_ledger(path)
