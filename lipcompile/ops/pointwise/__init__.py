"""Functions of entries that have no Lipschitz constant: comparisons, quotients, powers, choices."""
