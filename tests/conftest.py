"""One thread per process where tests run side by side: networks of several workers on all cores only wait for each other."""

import os

import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
