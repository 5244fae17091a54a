"""The emitted PyTorch module, as text. It calls functions of `lipcompile_torch` when it runs."""
