"""Noise: words of a secure generator, normals made of them, and the mechanism that adds them to gradients.

`mechanism` is the one place where noise is drawn and shared among parameters; `streams` correlates it over
steps.

Imports: lipcompile_privacy, lipcompile_torch.certify, lipcompile_torch.native, lipcompile_torch.sharding.
"""
