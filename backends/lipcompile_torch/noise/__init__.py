"""Noise: standard normals, and the mechanism that adds them to gradients.

`mechanism` is where noise is shared among parameters, scaled and added; `normals` draws it (AES on processors,
Philox on a GPU; `SecureNormals` exactly, on a grid); `streams` correlates it over steps. `masks` seeds
what dropout draws from.

Imports: lipcompile_privacy, lipcompile_torch.certify, lipcompile_torch.devices, lipcompile_torch.native,
lipcompile_torch.sharding.
"""
