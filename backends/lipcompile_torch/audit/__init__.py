"""Attacks: on bounds, by ascent over inputs and weights; on privacy, by canaries and guesses about them.

`signal` attacks nothing: it measures gradients at the initial weights, beside the bounds.

Imports: lipcompile_privacy, lipcompile_torch.certify, lipcompile_torch.clip, lipcompile_torch.nn,
lipcompile_torch.noise, lipcompile_torch.train.
"""
