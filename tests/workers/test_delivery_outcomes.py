"""What the outcome of a delivery shows about the health of the service."""

import pytest

from deadletter.core.circuit_breaker import ServiceHealth
from deadletter.workers.delivery.http.connection import Response
from deadletter.workers.delivery.http.errors import (
    ConnectFailed,
    ConnectionBroken,
    HttpError,
    InvalidResponse,
    ResponseTimeout,
)
from deadletter.workers.delivery.http.outcomes import outcome_of_error, outcome_of_response


@pytest.mark.parametrize(
    ("health", "codes"),
    [
        (ServiceHealth.Up, (200, 204, 400, 401, 403, 404, 409, 422)),
        (ServiceHealth.Failed, (408, 425, 429, 500, 501, 507)),
        (ServiceHealth.Down, (502, 503, 504)),
    ],
)
def test_a_status_shows_the_health_of_the_service(health: ServiceHealth, codes: tuple[int, ...]):
    outcomes = {code: outcome_of_response(Response(code), is_success=code < 300, now=0) for code in codes}
    assert {code: outcome.service_health for code, outcome in outcomes.items()} == dict.fromkeys(codes, health)
    assert {outcome.is_answered for outcome in outcomes.values()} == {health is not ServiceHealth.Down}


@pytest.mark.parametrize("error", [ConnectFailed, ConnectionBroken, ResponseTimeout, InvalidResponse])
def test_a_service_without_a_response_is_not_reached(error: type[HttpError]):
    outcome = outcome_of_error(error("no response"))
    assert outcome.service_health is ServiceHealth.Down
    assert not outcome.is_answered
