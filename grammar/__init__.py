"""The grammar of the .lip language, as package data."""
