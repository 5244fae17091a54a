"""Linear maps with weights: dense layers, biases, convolutions."""
