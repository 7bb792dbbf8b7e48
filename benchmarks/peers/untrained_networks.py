"""Networks of torchvision in the authors' code, without a download of their weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from torchvision import models


@contextmanager
def without_weights(name: str) -> Iterator[None]:
    """Have the network called `name` built with random weights, whichever weights are asked for."""
    build = getattr(models, name)

    def untrained(**_options: object) -> object:
        return build(weights=None)

    with patch.object(models, name, untrained):
        yield
