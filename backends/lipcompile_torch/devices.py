"""Where tensors are: on processors, for which there is native code and room in caches, or on another device.

Every choice between the two asks here. So a test can take processors for a device of which nothing is known, and
run what no processor would.
"""

from __future__ import annotations

import torch

PROCESSORS = frozenset({"cpu"})
"""Types of devices whose memory native code reads and writes."""


def is_processor(device: torch.device) -> bool:
    """Whether tensors on a device lie in the processor's memory."""
    return device.type in PROCESSORS


def at_once(device: torch.device, on_processors: int, elsewhere: int) -> int:
    """Return how many entries are worked on at once: as many as a cache holds, or as keep a device busy."""
    return on_processors if is_processor(device) else elsewhere
