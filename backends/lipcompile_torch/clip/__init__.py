"""Bounds by clip: norms of the gradients of single examples, and sums of clipped ones, in one backward pass.

`bookkeeping` notes each use of a parameter, `clipping` turns the notes into clipped sums. `example_passes` is
for passes of single examples by `vmap`. The clip of the loss and the thresholds that follow private quantiles
belong to `train`.

Imports: lipcompile_privacy, lipcompile_torch.certify, lipcompile_torch.devices, lipcompile_torch.native.
"""
