"""Train the digits in a plain loop. Four lines, marked, are all that makes it private.

lipcompile compile lipcompile/data/digits.lip -o digits.py
python examples/training_loop.py digits.py
"""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import click
import torch
from lipcompile_torch import PrivacyEngine  # private
from lipcompile_torch.train.data import load_npz
from torch.utils.data import DataLoader, TensorDataset

DATA = Path(__file__).parent.parent / "lipcompile" / "data" / "digits.npz"


@click.command()
@click.argument("emitted", type=click.Path(exists=True, path_type=Path))
@click.option("--epochs", default=20, show_default=True)
@click.option("--ledger", default="ledger.jsonl", type=click.Path(path_type=Path), help="What is spent.")
def main(emitted: Path, epochs: int, ledger: Path) -> None:
    """Train the module EMITTED by `lipcompile compile` to ε = 3."""
    data = load_npz(DATA, (64,), 10)
    examples = TensorDataset(torch.from_numpy(data.x_train), torch.from_numpy(data.y_train))
    model: Any = run_path(str(emitted))["Model"]()
    loader: Any = DataLoader(examples, batch_size=512, shuffle=True)
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.02)

    engine = PrivacyEngine(ledger=ledger)  # private
    budget: Any = {"target_epsilon": 3.0, "target_delta": 1e-5, "epochs": epochs, "noise": "optimal"}  # private
    model, optimizer, loader = engine.make_private_with_epsilon(  # private
        module=model, optimizer=optimizer, data_loader=loader, **budget
    )

    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            model.criterion(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            right = model(torch.from_numpy(data.x_test)).argmax(1) == torch.from_numpy(data.y_test)
        print(f"epoch {epoch + 1}: test accuracy {100 * right.float().mean():.1f} %")
    print(f"ε = {engine.get_epsilon(1e-5):.4f} at δ = 1e-05; lipcompile ledger {ledger} says so, too")


if __name__ == "__main__":
    main()
