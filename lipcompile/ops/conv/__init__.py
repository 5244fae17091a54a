"""conv1d, conv2d, conv3d and transposes. Proofs: `../linear/linear.md`, whose name is in every certificate."""
