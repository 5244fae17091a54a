"""Linear maps with weights: dense layers and biases; the proofs of convolutions."""
