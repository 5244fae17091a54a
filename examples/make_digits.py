"""Make `lipcompile/data/digits.npz`, the data of `lipcompile demo`, from scikit-learn's copy of the digits.

    python examples/make_digits.py

Needs scikit-learn. Its grey values 0 to 16 become 0 to 255. The split is stratified and fixed: 1437 examples to
train on, 360 to test on. The file is the same, byte for byte, whenever it is made.
"""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

TARGET = Path(__file__).parent.parent / "lipcompile" / "data" / "digits.npz"
LONG_AGO = (1980, 1, 1, 0, 0, 0)


def main() -> None:
    """Write the file."""
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8),
        labels.astype(np.uint8),
        test_size=0.2,
        stratify=labels,
        random_state=0,
    )
    arrays = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
    with zipfile.ZipFile(TARGET, "w") as archive:
        for name, array in arrays.items():
            content = BytesIO()
            np.lib.format.write_array(content, array)
            entry = zipfile.ZipInfo(f"{name}.npy", LONG_AGO)
            archive.writestr(entry, content.getvalue(), zipfile.ZIP_DEFLATED, 9)
    print(f"{TARGET}: {len(x_train)} + {len(x_test)} examples, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
