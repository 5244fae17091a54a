"""Bounds by clip: norms of the gradients of examples, inside one backward pass, and of their losses."""
