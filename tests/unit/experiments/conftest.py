"""What tests of this folder share."""

from collections.abc import Iterator

import pytest

from fdgsec.experiments.audit.training_checks import OBJECTIVES
from fdgsec.privacy.passed_checks import checked_once


@pytest.fixture
def within_an_audit() -> Iterator[None]:
    """Small networks are checked as in an audit: in full once for each kind, and not before every training."""
    with checked_once(*OBJECTIVES):
        yield
