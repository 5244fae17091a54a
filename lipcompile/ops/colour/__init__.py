"""Colour spaces of images: linear maps of every pixel, and HSV, which jumps."""
