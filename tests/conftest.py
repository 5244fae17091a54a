"""Two workers share two cores: more threads in each would only wait for one another."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for subprocesses

import torch

torch.set_num_threads(1)
