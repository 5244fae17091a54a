"""Ops that copy, pad and enlarge; `slice` is in `shape`."""
