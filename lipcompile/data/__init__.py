"""Data that ships with the installation, for the demo."""
