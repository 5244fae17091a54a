"""Training: the engine and its checks, gradients, sampling, ledger, checkpoints, several processes."""
