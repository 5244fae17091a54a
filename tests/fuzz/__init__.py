"""A structure-aware fuzzer of `lipcompile check`: valid models, changed in their structure or byte by byte.

`python -m tests.fuzz` runs it; `tests/fuzz/test_fuzz.py` runs a few hundred cases among the tests. A case is made
of the seed, its number and the corpus alone, so any one of a run can be had again.
"""
