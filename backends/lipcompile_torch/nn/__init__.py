"""The parts of an emitted module: layers, functions, losses. Nothing here trains, draws noise or reads a file.

A layer computes what its op's rule speaks of, keeps its weights in their constraint set, and notes its uses
where its parameters are clipped.

Imports: lipcompile_torch.autograd, lipcompile_torch.certify, lipcompile_torch.clip, lipcompile_torch.devices,
lipcompile_torch.native, lipcompile_torch.sharding.
"""
