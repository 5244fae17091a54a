"""Benchmarks: each is run from the root of the repository. A package, for Opacus installs one of this name."""
