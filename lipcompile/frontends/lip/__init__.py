"""The .lip language: text -> syntax tree -> graph."""
