"""What tests of this folder share."""

from collections.abc import Iterator

import pytest

from fdgsec.experiments.audit.training_checks import OBJECTIVES
from fdgsec.privacy.passed_checks import checked_once


@pytest.fixture(scope="module")
def within_an_audit() -> Iterator[None]:
    """Small networks are checked as in an audit: once for each kind, and not before every training of a module."""
    with checked_once(*OBJECTIVES):
        yield
