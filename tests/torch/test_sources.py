"""Folders of images, and data sets that are asked item by item."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_torch.sources import images_in, items_of
from lipcompile_torch.train import data
from lipcompile_torch.train.data import DataError, load_npz
from PIL import Image
from torch.utils.data import TensorDataset

import lipcompile


def write(path: Path, pixels: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path)


def test_folders_of_images_are_classes(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "cats" / f"{number}.png", np.full((4, 5), 10 * number))
        write(tmp_path / "dogs" / f"{number}.PNG", np.full((4, 5), 200))
    (tmp_path / "dogs" / "notes.txt").write_text("no image")
    (tmp_path / "dogs" / "._1.png").write_text("what another system puts beside an image")
    (tmp_path / ".checkpoints").mkdir()
    found = images_in(tmp_path)
    assert found["x_train"].dtype == found["x_test"].dtype == np.uint8
    pixels = [*found["x_train"][:, 0, 0], *found["x_test"][:, 0, 0]]
    assert sorted(pixels) == [0, 10, 20, 200, 200, 200]
    assert [*found["y_train"], *found["y_test"]] == [int(pixel == 200) for pixel in pixels]
    arrays = load_npz(tmp_path, (1, 4, 5), classes=2)
    assert arrays.x_train.shape == (len(found["x_train"]), 1, 4, 5)
    assert arrays.x_train.max() <= 1.0


def test_no_image_decides_whether_another_is_held_out(tmp_path: Path) -> None:
    """The places of files, by which rows were held out, depend on the names and the classes of those before."""
    for number in range(100):
        write(tmp_path / "cats" / f"{number}.png", np.full((2, 2), number))
        write(tmp_path / "dogs" / f"{number}.png", np.full((2, 2), 100 + number))
    before = images_in(tmp_path)
    (tmp_path / "cats" / "0.png").rename(tmp_path / "dogs" / "one that was a cat.png")
    after = images_in(tmp_path)
    # Of 200 images a fifth is 40, give or take 17 with probability 0.997: the hash is public, so this is fixed.
    assert 23 <= len(before["y_test"]) <= 57
    for part in ("train", "test"):
        one, other = (set(found[f"x_{part}"][:, 0, 0].tolist()) - {0} for found in (before, after))
        assert one == other


def test_too_few_images_to_hold_some_out_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name / "1.png", np.zeros((4, 4)))
    with pytest.raises(DataError, match="put them into folders train and test"):
        images_in(tmp_path)


def test_parts_that_the_folders_have_stay(tmp_path: Path) -> None:
    for part, classes in (("train", "ab"), ("test", "b")):
        for name in classes:
            write(tmp_path / part / name / "1.png", np.zeros((4, 4, 3)))
    found = images_in(tmp_path)
    assert found["x_train"].shape == (2, 4, 4, 3)
    assert found["y_train"].tolist() == [0, 1]
    assert found["y_test"].tolist() == [1]


def test_one_coloured_image_changes_no_other(tmp_path: Path) -> None:
    """The shape of all that is trained on would tell that it is there; the network says what images are."""
    for part in ("train", "test"):
        write(tmp_path / part / "a" / "1.png", np.full((4, 4), 7))
        write(tmp_path / part / "b" / "1.png", np.zeros((4, 4, 3)))
    with pytest.raises(DataError, match=r"some of the images in .* some are coloured: give each one shape"):
        images_in(tmp_path)
    with pytest.raises(DataError, match="some are coloured"):
        load_npz(tmp_path, (16,))  # which does not say it
    for shape in ((3, 4, 4), (4, 4, 3), (1, 4, 4), (4, 4)):
        found = load_npz(tmp_path, shape)
        assert found.x_train.shape[1:] == found.x_test.shape[1:] == shape
    x = images_in(tmp_path, colours=True)["x_train"]
    assert x[0].tolist() == np.full((4, 4, 3), 7).tolist()


def test_images_of_other_sizes_are_scaled_and_cropped_by_themselves(tmp_path: Path) -> None:
    """The middle of 4 by 16 stays; halves of 8 by 8 are those of 4 by 4; the camera may have been turned."""
    middle = np.zeros((4, 16))
    middle[:, 6:10] = 90
    halves = np.zeros((8, 8, 3))
    halves[:4] = 200
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held so that the right of the picture is its bottom
    for part in ("train", "test"):
        write(tmp_path / part / "a" / "middle.png", middle)
        write(tmp_path / part / "b" / "halves.png", halves)
        (tmp_path / part / "c").mkdir()
        pixels = np.asarray(halves[..., 0].T, dtype=np.uint8)  # the left half is bright, and so above when turned
        Image.fromarray(pixels).save(tmp_path / part / "c" / "turned.png", exif=turned)
    x = load_npz(tmp_path, (1, 4, 4)).x_train[:, 0] * 255
    assert np.array_equal(np.round(x[0]), np.full((4, 4), 90))
    assert x[1, 0] == pytest.approx(200, abs=3)
    assert x[1, 3] == pytest.approx(0, abs=3)
    assert np.array_equal(x[1], x[2])
    assert load_npz(tmp_path, (2, 2, 3)).x_train.shape == (3, 2, 2, 3)


class Drawn:
    """Items that are drawn from torch's generator."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return torch.rand(4).numpy(), index


def test_what_augments_items_comes_from_a_secret_seed() -> None:
    """With a known one, an item moves all behind it to other crops and flips."""
    found: list[Any] = []
    for seeded in (True, True, False, False):
        torch.manual_seed(0)
        found.append(data.items_of(Drawn(), seeded)[0])
    assert np.array_equal(found[0], found[1])
    assert not np.isin(found[2], found[0]).any()
    assert not np.isin(found[3], found[2]).any()


def test_wrong_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folders of images"):
        images_in(tmp_path)
    write(tmp_path / "a" / "1.png", np.zeros((4, 4)))
    with pytest.raises(DataError, match="no folders of images"):
        images_in(tmp_path)
    write(tmp_path / "b" / "1.png", np.zeros((4, 5)))
    with pytest.raises(DataError, match="different sizes"):
        images_in(tmp_path)
    (tmp_path / "b" / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"1\.png cannot be read as an image"):
        images_in(tmp_path)


class Items:
    """A data set as Hugging Face's are: items are mappings."""

    def __init__(self, *items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]


def test_items_are_pairs_or_mappings() -> None:
    x: Any
    x, y = items_of(TensorDataset(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0])))
    assert x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert y.tolist() == [0, 1, 0]
    image = Image.fromarray(np.full((4, 4), 9, dtype=np.uint8))
    x, y = items_of(Items({"image": image, "label": 3, "id": "a"}, {"image": image, "label": 4, "id": "b"}))
    assert x.shape == (2, 4, 4)
    assert y.tolist() == [3, 4]


def test_the_input_of_a_pair_may_be_several() -> None:
    items = Items(*(({"ids": torch.tensor([n, n]), "mask": np.array(n)}, n) for n in (1, 2)))
    x: Any
    x, y = items_of(items)
    assert {name: array.tolist() for name, array in x.items()} == {"ids": [[1, 1], [2, 2]], "mask": [1, 2]}
    assert y.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (iter([1]), "stream"),
        (Items(({"a": np.zeros(2)}, 0), ({"b": np.zeros(2)}, 0)), "different inputs"),
        (Items(({"a": np.zeros(2)}, 0), (np.zeros(2), 0)), "different inputs"),
        (Items(({"a": np.zeros(2)}, 0), ({"a": np.zeros(3)}, 0)), "different shapes"),
        (Items(({"a": np.zeros(1, np.uint8)}, 0), ({"a": np.zeros(1)}, 0)), "different types of numbers"),
        (Items(), "no items"),
        (Items(1), "must be pairs"),
        (Items({"picture": 1, "label": 2}), "rename two"),
        (Items((np.zeros(2), 0), (np.zeros(3), 0)), "different shapes"),
        # Of whole numbers all would be divided by 255: one item would change all others.
        (Items((np.zeros(2, np.uint8), 0), (np.zeros(2, np.float32), 0)), "different types of numbers"),
        (Items((np.zeros(2), 0), (np.zeros(2), 0.5)), "different types of numbers"),
    ],
)
def test_other_items_are_refused(wrong: Any, match: str) -> None:
    with pytest.raises(DataError, match=match):
        items_of(wrong)


@pytest.mark.slow
def test_data_sets_are_trained_on(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    y = torch.tensor(source.integers(0, 2, 300))
    x = torch.tensor(source.standard_normal((300, 4)), dtype=torch.float32) + 4 * (2 * y[:, None] - 1)
    parts = TensorDataset(x[:200], y[:200]), TensorDataset(x[200:], y[200:])
    result = lipcompile.train(
        torch.nn.Linear(4, 2), parts, tmp_path / "run", epsilon=50.0, delta=1e-4, loss="cross_entropy", epochs=10
    )
    assert result.test_accuracy > 0.8


def test_an_image_of_more_than_8_bits_is_refused(tmp_path: Path) -> None:
    """Pillow cuts its numbers to 255: nearly all pixels would be white."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(9):
            Image.fromarray(np.full((2, 2), 30000, np.uint16)).save(tmp_path / name / f"{number}.png")
    with pytest.raises(DataError, match="more than 8 bits"):
        images_in(tmp_path)


# A picture of 7 by 9 pixels, but for four bytes in the middle that nobody announced.
DAMAGED = (
    "89504e470d0a1a0a0000000d4948445200000007000000090802000000713aa1f40000001a655849664d4d002a0000000800010112000300"
    "0000010006000000000000d6674b690000000c49444154789c636018722041ad0e000000c60001c000c7e60000000049454e44ae426082"
)


@pytest.mark.parametrize("damaged", [b"P6 \xff 2 255\n", bytes.fromhex(DAMAGED)])
def test_a_damaged_image_is_named_and_not_quoted(tmp_path: Path, damaged: bytes) -> None:
    """Pillow raises a ValueError and a SyntaxError, which quote its bytes."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(damaged)
    with pytest.raises(DataError, match=r"1\.png cannot be read as an image$"):
        images_in(tmp_path)
