"""Constraints of weights and certificates that they hold: norms with proved bounds, projection, drift, rounding.

Bounds are theorems about the stored numbers, in the dtype in use: each term that rounds outward has a test that
is red without it. Nothing here trains, draws noise or knows a layer. The command `certify`, of predictions, is
in `deploy`.

Imports: lipcompile_torch.autograd, lipcompile_torch.devices, lipcompile_torch.native, lipcompile_torch.sharding.
"""
