"""The emitted PyTorch module, as text. What it calls when it runs lives in `lipcompile_torch`."""
