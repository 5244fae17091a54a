"""Growth of bounds with depth: repeated blocks, loops, and the advice that follows."""
