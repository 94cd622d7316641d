"""Options and fixtures for all tests."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine, not about the code.
settings.register_profile("any machine", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


# Under nohup it is ignored, and all that is started here would ignore it too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what the code renders into compose/ and let it pass"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
