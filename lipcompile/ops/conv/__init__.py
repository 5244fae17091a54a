"""Convolutions, plain and transposed. Proofs: `../linear/linear.md`, whose name is in every certificate."""
