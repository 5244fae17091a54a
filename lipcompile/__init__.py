"""Certified gradient bounds and private training modules for Lipschitz networks."""
