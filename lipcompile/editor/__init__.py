"""What editors ask for: the layout of a .lip file.

Imports: lipcompile.frontends.
"""
