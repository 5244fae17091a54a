"""Time and memory of a training step, ours beside others: see `benchmarks/step_time.py`."""
