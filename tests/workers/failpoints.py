"""A courier that kills itself at one step of its work, the n-th time it gets there.

    python -m tests.workers.failpoints BROKER STEP TIMES

A step is a method of the product or of a driver, and whether the courier dies before or after it.
"""

import os
import signal
import sys
from importlib import import_module
from typing import Any

from deadletter.workers.courier.main import main

_HTTP = "deadletter.workers.delivery.http"
_KAFKA = "deadletter.brokers.kafka"
_REDIS = "deadletter.brokers.redis"
ALL_BROKERS = {
    "claimed": (f"{_HTTP}.delivery:HttpMessageDelivery.attempt", "before"),
    "answered": (f"{_HTTP}.delivery:HttpMessageDelivery.attempt", "after"),
}
KAFKA = {
    "before-plain-commit": ("aiokafka:AIOKafkaConsumer.commit", "before"),
    "after-plain-commit": ("aiokafka:AIOKafkaConsumer.commit", "after"),
    "begun": ("aiokafka:AIOKafkaProducer.begin_transaction", "after"),
    "letter-written": (f"{_KAFKA}.transactions:Transaction.send", "after"),
    "offset-written": ("aiokafka:AIOKafkaProducer.send_offsets_to_transaction", "after"),
    "before-end": ("aiokafka:AIOKafkaProducer.commit_transaction", "before"),
    "after-end": ("aiokafka:AIOKafkaProducer.commit_transaction", "after"),
}
REDIS = {
    "before-letter": (f"{_REDIS}.settlement_writer:RedisSettlementWriter._publish", "before"),
    "letter-written": (f"{_REDIS}.settlement_writer:RedisSettlementWriter._publish", "after"),
    "acknowledged": (f"{_REDIS}.settlement_writer:RedisSettlementWriter._acknowledge", "after"),
    "before-due-settled": (f"{_REDIS}.settlement_writer:RedisSettlementWriter._settle_due", "before"),
    "due-settled": (f"{_REDIS}.settlement_writer:RedisSettlementWriter._settle_due", "after"),
}
STEPS = {"kafka": ALL_BROKERS | KAFKA, "redis": ALL_BROKERS | REDIS}


def arm(where: str, when: str, times: int) -> None:
    """Make the method kill this process at its n-th call."""
    module, _, path = where.partition(":")
    owner_name, method_name = path.split(".")
    owner = getattr(import_module(module), owner_name)
    method, calls = getattr(owner, method_name), 0

    async def dying(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == times and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        call = calls
        result = await method(*args, **kwargs)
        if call == times and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, method_name, dying)


if __name__ == "__main__":
    arm(*STEPS[sys.argv[1]][sys.argv[2]], int(sys.argv[3]))
    sys.exit(main([]))
