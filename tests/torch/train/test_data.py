"""Data files: what is read as what, and every refusal in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lipcompile_torch.train.data import DataError, from_arrays, load_npz, load_test_npz

RNG = np.random.default_rng(0)


def files(**changes: Any) -> dict[str, Any]:
    plain = {
        "x_train": RNG.normal(size=(20, 4)),
        "y_train": np.arange(20) % 3,
        "x_test": RNG.normal(size=(10, 4)),
        "y_test": np.arange(10) % 3,
    }
    return {**plain, **changes}


def test_arrays_come_back_in_training_types(tmp_path: Path) -> None:
    content = files()
    np.savez(tmp_path / "d.npz", **content)
    data = load_npz(tmp_path / "d.npz", (4,), 3)
    assert data.x_train.dtype == np.float32
    assert data.y_train.dtype == np.int64
    np.testing.assert_allclose(data.x_test, content["x_test"], rtol=1e-6)
    np.testing.assert_array_equal(data.y_test, content["y_test"])


@pytest.mark.parametrize("names", [("X", "y"), ("x", "y")])
def test_one_set_is_split_80_to_20_the_same_way_each_time(names: tuple[str, str]) -> None:
    content = {names[0]: np.arange(50.0)[:, None], names[1]: np.arange(50)}
    one, other = from_arrays(content, (1,)), from_arrays(content, (1,))
    assert (len(one.x_train), len(one.x_test)) == (40, 10)
    assert sorted([*one.y_train, *one.y_test]) == list(range(50))
    np.testing.assert_array_equal(one.y_test, other.y_test)
    np.testing.assert_array_equal(one.x_test[:, 0], one.y_test)


@pytest.mark.parametrize("names", [(), ("x_train", "y_train")])
def test_the_test_part_alone_is_what_it_is_beside_the_other(tmp_path: Path, names: tuple[str, ...]) -> None:
    content = files()
    np.savez(tmp_path / "d.npz", **{name: array for name, array in content.items() if name not in names})
    x, y = load_test_npz(tmp_path / "d.npz", (4,), 3)
    np.testing.assert_array_equal(x, content["x_test"].astype(np.float32))
    np.testing.assert_array_equal(y, content["y_test"])


def test_the_test_part_of_one_set_is_what_training_holds_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", X=np.arange(50.0)[:, None], y=np.arange(50))
    x, y = load_test_npz(tmp_path / "d.npz", (1,), 50)
    whole = load_npz(tmp_path / "d.npz", (1,), 50)
    np.testing.assert_array_equal(x, whole.x_test)
    np.testing.assert_array_equal(y, whole.y_test)


def test_bytes_become_the_unit_interval() -> None:
    x = np.array([[0, 255, 51, 102]] * 20, dtype=np.uint8)
    data = from_arrays(files(x_train=x), (4,))
    np.testing.assert_allclose(data.x_train[0], [0, 1, 0.2, 0.4], rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((28, 28), (1, 28, 28)),
        ((28, 28, 1), (1, 28, 28)),
        ((1, 28, 28), (28, 28)),
        ((784,), (1, 28, 28)),
        ((1, 28, 28), (784,)),
    ],
)
def test_shapes_that_differ_in_form_only_are_reshaped(given: Any, wanted: Any) -> None:
    x = RNG.normal(size=(30, *given)).astype(np.float32)
    data = from_arrays(files(x_train=x[:20], x_test=x[20:]), wanted)
    np.testing.assert_array_equal(data.x_train, x[:20].reshape(20, *wanted))


def test_channels_move_to_the_front_when_that_is_what_it_takes() -> None:
    x = RNG.normal(size=(30, 8, 6, 3)).astype(np.float32)
    data = from_arrays(files(x_train=x[:20], x_test=x[20:]), (3, 8, 6))
    np.testing.assert_array_equal(data.x_train[0, 2], x[0, :, :, 2])


def test_targets_of_regression_and_columns_of_classes() -> None:
    data = from_arrays(files(y_train=RNG.normal(size=20), y_test=RNG.normal(size=10)), (4,))
    assert data.y_train.dtype == np.float32
    column = from_arrays(files(y_train=(np.arange(20) % 3)[:, None].astype(float)), (4,), 3)
    assert column.y_train.shape == (20,)
    assert column.y_train.dtype == np.int64


BAD = RNG.normal(size=(20, 4))
BAD[3, 1] = np.nan


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x_train": BAD}, "NaN or infinity"),
        ({"x_train": np.zeros((20, 5))}, r"shape \(5,\) each: the network takes \(4,\)"),
        ({"x_train": np.zeros((20, 2, 3, 4))}, "reshape them"),
        ({"x_train": np.zeros((0, 4)), "y_train": np.zeros(0, int)}, "there are no training inputs"),
        ({"x_train": np.array(["a"] * 20)}, "must be numbers"),
        ({"y_train": np.arange(19) % 3}, "20 inputs for training labels"),
        ({"y_train": np.arange(20)}, "training labels have a class index outside 0 … 2.* count classes from 0"),
        ({"y_test": np.arange(10) - 1}, "test labels have a class index outside 0 … 2"),
        ({"y_train": np.full(20, 0.5)}, "integer class index"),
        ({"y_train": np.eye(3)[np.arange(20) % 3]}, r"integer class index, such as y.argmax\(1\)"),
        ({"y_train": np.array(["a", "b"] * 10)}, "are no numbers: give each class a number"),
        ({"y_train": np.full(20, np.inf)}, "not all finite"),
        ({"y_train": np.array(5)}, "one label"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_line(changes: Any, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        from_arrays(files(**changes), (4,), 3)
    assert "\n" not in str(caught.value)


def test_missing_arrays_are_named() -> None:
    with pytest.raises(DataError, match="has arrays images: it needs x_train"):
        from_arrays({"images": np.zeros(3)}, (4,))
    with pytest.raises(DataError, match="the same number of examples"):
        from_arrays({"X": np.zeros((3, 4)), "y": np.zeros(2, int)}, (4,))


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04broken"])
def test_files_that_are_no_npz_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "d.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"is not an \.npz file"):
        load_npz(tmp_path / "d.npz", (4,))


def test_single_arrays_and_pickles_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"is not an \.npz file"):
        load_npz(tmp_path / "d.npy", (4,))
    np.savez(tmp_path / "o.npz", X=np.array([object()], dtype=object), y=np.zeros(1))
    with pytest.raises(DataError, match=r"plain arrays"):
        load_npz(tmp_path / "o.npz", (4,))
    with pytest.raises(OSError, match="No such file"):
        load_npz(tmp_path / "absent.npz", (4,))


PARTS = (("ids", (3,)), ("mask", (3,)))


def test_several_inputs_stand_in_a_file_by_their_names(tmp_path: Path) -> None:
    ids, mask = RNG.integers(7, size=(20, 3)), RNG.integers(2, size=(20, 3)).astype(bool)
    labels = {"y_train": np.arange(20) % 3, "y_test": np.arange(5) % 3}
    arrays: Any = {"ids_train": ids, "mask_train": mask, "ids_test": ids[:5], "mask_test": mask[:5], **labels}
    np.savez(tmp_path / "d.npz", **arrays)
    found = load_npz(tmp_path / "d.npz", (6,), 3, (7, 7, 7, 2, 2, 2), PARTS)
    np.testing.assert_array_equal(found.x_train, np.concatenate([ids, mask], 1))
    np.testing.assert_array_equal(found.x_test, found.x_train[:5])
    assert found.x_train.dtype == np.int64
    split = from_arrays({"ids": ids, "mask": mask, "y": np.arange(20)}, (6,), None, 7, PARTS)
    assert (len(split.x_train), len(split.x_test)) == (16, 4)


def test_images_beside_numbers_are_scaled_alone() -> None:
    arrays = {"image": np.full((5, 2, 2), 255, np.uint8), "age": np.full((5, 1), 40.0), "y": np.zeros(5, np.int64)}
    found = from_arrays(arrays, (5,), 2, None, (("image", (2, 2)), ("age", (1,))))
    np.testing.assert_array_equal(found.x_train, [[1, 1, 1, 1, 40]] * 4)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"ids": np.zeros((4, 2), np.int64), "mask": np.zeros((4, 3), np.int64)}, r"ids has shape \(4, 2\)"),
        ({"ids": np.zeros((4, 3), np.int64), "mask": np.zeros((3, 3), np.int64)}, "different numbers of examples"),
        ({"ids": np.full((4, 3), 2), "mask": np.full((4, 3), 2)}, r"outside 0 … 1, the rows of the embedding"),
        ({"ids": np.full((4, 3), -1), "mask": np.full((4, 3), 1)}, r"outside 0 … 6"),
        ({"ids": np.zeros((4, 3), np.int64)}, "the file has arrays"),
    ],
)
def test_inputs_by_name_that_do_not_fit(arrays: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        from_arrays({**arrays, "y": np.zeros(4, np.int64)}, (6,), None, (7, 7, 7, 2, 2, 2), PARTS)


def test_an_input_may_have_the_name_of_the_whole() -> None:
    x, mask = RNG.normal(size=(5, 2)), RNG.normal(size=(5, 1))
    found = from_arrays({"x": x, "mask": mask, "y": np.zeros(5)}, (3,), 2, None, (("x", (2,)), ("mask", (1,))))
    whole = from_arrays({"x": np.column_stack([x, mask]), "y": np.zeros(5)}, (3,), 2)
    np.testing.assert_array_equal(found.x_train, whole.x_train)


def test_the_test_part_has_inputs_by_their_names_too(tmp_path: Path) -> None:
    image, age = RNG.normal(size=(20, 2, 2)), RNG.normal(size=20)
    parts = (("image", (2, 2)), ("age", ()))
    np.savez(tmp_path / "d.npz", image=image, age=age, y=np.arange(20) % 2)
    x, y = load_test_npz(tmp_path / "d.npz", (5,), 2, parts)
    whole = load_npz(tmp_path / "d.npz", (5,), 2, None, parts)
    np.testing.assert_array_equal(x, whole.x_test)
    np.testing.assert_array_equal(y, whole.y_test)


def test_labels_are_not_taken_for_an_input_of_their_name() -> None:
    arrays = {"a": RNG.normal(size=(5, 2)), "y": np.arange(5) % 2}
    with pytest.raises(DataError, match=r"y has two meanings, .*: give x, with the entries of all inputs, a, y, "):
        from_arrays(arrays, (3,), 2, None, (("a", (2,)), ("y", ())))


@pytest.mark.parametrize(
    ("given", "parts", "reason"),
    [
        ({"ids": np.zeros((4, 3), np.int64)}, PARTS, "the inputs are ids, mask, but ids are given"),
        (dict.fromkeys(("ids", "mask", "z"), np.zeros((4, 3), int)), PARTS, "but ids, mask, z are given"),
        (dict.fromkeys(("ids", "mask"), np.zeros((4, 3))), PARTS, "the entries of ids are of type float64"),
        (dict.fromkeys(("ids", "mask"), np.zeros((4, 3), int)), (), "the network takes one input, but ids, mask"),
    ],
)
def test_mappings_that_do_not_fit(given: Any, parts: Any, reason: str) -> None:
    labels = np.zeros(4, np.int64)
    with pytest.raises(DataError, match=reason):
        from_arrays({"x_train": given, "y_train": labels, "x_test": given, "y_test": labels}, (6,), 2, 7, parts)


def test_a_mapping_of_one_input_is_that_input() -> None:
    x, labels = RNG.normal(size=(4, 6)), np.zeros(4, np.int64)
    found = from_arrays(
        {"x_train": {"image": x}, "y_train": labels, "x_test": {"image": x}, "y_test": labels}, (6,)
    )
    np.testing.assert_array_equal(found.x_train, x.astype(np.float32))
