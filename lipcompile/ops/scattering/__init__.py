"""The scattering transform."""
