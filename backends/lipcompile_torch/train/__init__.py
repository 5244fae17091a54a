"""Training: the module and its gate, the engine, its checks, gradients, sampling, ledger, checkpoints, averages.

`gate` watches what passes forward and backward, `checks` refuses what the analysis does not cover, `optimizer`
takes the step: checks, noise, the user's optimizer, projection. Nothing here parses a model.

Imports: lipcompile_privacy, lipcompile_torch.augmentation, lipcompile_torch.autograd, lipcompile_torch.averaging,
lipcompile_torch.certify, lipcompile_torch.clip, lipcompile_torch.devices, lipcompile_torch.distributed,
lipcompile_torch.native, lipcompile_torch.nn, lipcompile_torch.noise, lipcompile_torch.sharding,
lipcompile_torch.sources, lipcompile_verify.
"""
