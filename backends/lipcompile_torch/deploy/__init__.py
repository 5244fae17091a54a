"""After training: certified radii of predictions, attacks on them, weights and agreement for exported files.

Imports: lipcompile_torch.certify, lipcompile_torch.nn, lipcompile_torch.sharding, lipcompile_torch.train.
"""
