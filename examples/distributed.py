"""Train the digits on several processes, replicated or in shards: one batch, one noise, one ledger for all.

    lipcompile compile lipcompile/data/digits.lip -o digits.py
    torchrun --nproc-per-node 2 examples/distributed.py digits.py
    torchrun --nproc-per-node 2 examples/distributed.py digits.py --shard

Uses one GPU for each process if there are as many, else the processors.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from runpy import run_path
from typing import Any

import click
import torch
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.train.checkpoint import save_checkpoint
from lipcompile_torch.train.data import load_npz
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

DATA = Path(__file__).parent.parent / "lipcompile" / "data" / "digits.npz"


def device() -> torch.device:
    """Return where this process computes, and join the others."""
    local = int(os.environ["LOCAL_RANK"])
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    dist.init_process_group("nccl" if on_gpus else "gloo")
    if on_gpus:
        torch.cuda.set_device(local)
    return torch.device("cuda", local) if on_gpus else torch.device("cpu")


@click.command()
@click.argument("emitted", type=click.Path(exists=True, path_type=Path))
@click.option("--shard", is_flag=True, help="Cut the weights into shards (FSDP2) instead of replicating them.")
@click.option("--epochs", default=20, show_default=True)
@click.option(
    "--output", default=Path(), type=click.Path(path_type=Path), help="Of the ledger and the checkpoint."
)
def main(emitted: Path, shard: bool, epochs: int, output: Path) -> None:
    """Train the module EMITTED by `lipcompile compile` to ε = 3."""
    here = device()
    data = load_npz(DATA, (64,), 10)
    examples = TensorDataset(torch.from_numpy(data.x_train), torch.from_numpy(data.y_train))
    model: Any = run_path(str(emitted))["Model"]().to(here)
    if shard:
        for layer in model.children():
            fully_shard(layer)
        fully_shard(model)
    engine = PrivacyEngine(ledger=output / "ledger.jsonl")  # after init_process_group; rank 0 writes it
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.02),  # after fully_shard
        data_loader=DataLoader(examples, batch_size=512),  # b of all processes together
        target_epsilon=3.0,
        target_delta=1e-5,
        epochs=epochs,
        noise="optimal",
    )
    for _ in range(epochs):
        for x, y in loader:  # this process's share of the batch, which may be empty
            optimizer.zero_grad()
            model.criterion(model(x.to(here)), y.to(here)).backward()
            optimizer.step()
    with torch.no_grad():
        x, y = torch.from_numpy(data.x_test).to(here), torch.from_numpy(data.y_test).to(here)
        accuracy = float((model(x).argmax(1) == y).float().mean())
    assert engine.ledger is not None
    save_checkpoint(output / "checkpoint.pt", model, optimizer, engine.ledger)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes: accuracy {accuracy:.3f}, ε = {engine.get_epsilon(1e-5):.3f}")
    del model, optimizer, loader, engine
    gc.collect()  # they hold the group, whose threads must not outlive the interpreter
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
