"""Softmax and its logarithm, as layers; the loss is in `loss`."""
