"""Train the digits with PyTorch Lightning. The module is as for ordinary training; one callback makes it private.

pip install 'lipcompile[lightning]'
lipcompile compile lipcompile/data/digits.lip -o digits.py
python examples/lightning_training.py digits.py
"""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import click
import torch
from lightning.pytorch import LightningModule, Trainer
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.lightning import PrivacyCallback
from lipcompile_torch.train.data import load_npz
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

DATA = Path(__file__).parent.parent / "lipcompile" / "data" / "digits.npz"


class Digits(LightningModule):  # type: ignore[misc]  # typed where lightning is installed
    """Trains a network that `lipcompile compile` emitted."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        """Return the loss."""
        x, y = batch
        loss: Tensor = self.network.criterion(self.network(x), y)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        """Log the accuracy on held-out examples."""
        x, y = batch
        self.log("accuracy", (self.network(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an ordinary optimizer."""
        return torch.optim.Adam(self.parameters(), lr=0.02)


@click.command()
@click.argument("emitted", type=click.Path(exists=True, path_type=Path))
@click.option("--epochs", default=20, show_default=True)
@click.option("--ledger", default="ledger.jsonl", type=click.Path(path_type=Path), help="What is spent.")
def main(emitted: Path, epochs: int, ledger: Path) -> None:
    """Train the module EMITTED by `lipcompile compile` to ε = 3."""
    data = load_npz(DATA, (64,), 10)
    train, test = (
        TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test))
    )
    private = PrivacyCallback(PrivacyEngine(ledger=ledger), target_epsilon=3.0, target_delta=1e-5, noise="optimal")
    trainer = Trainer(max_epochs=epochs, callbacks=[private], logger=False, enable_checkpointing=False)
    trainer.fit(Digits(run_path(str(emitted))["Model"]()), DataLoader(train, 512), DataLoader(test, len(test)))
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
