"""Remove what departed pods left behind: their consumers in the group and their heartbeats in the ledger.

A consumer with pending messages is never removed, because Redis would forget these messages. Others take them over when
the lease has ended; then the consumer can go. A consumer that is removed although it lives is created again by its next
read.
"""

from deadletter.brokers.redis.client import Arg, RedisClient, to_dict
from deadletter.brokers.redis.scripts import Script
from deadletter.brokers.types import SubscriptionSpec
from deadletter.core.ledger.records import worker_key

MIN_IDLE_MS = 3_600_000

# KEYS: source. ARGV: group, minimum idle time in ms, optional name. Deletes the consumers without pending messages that
# have been idle for so long; with a name only this one. One script, because a consumer may claim at any moment.
DELETE_CONSUMERS = Script("""
for _, reply in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for at = 1, #reply, 2 do consumer[reply[at]] = reply[at + 1] end
  local is_meant = not ARGV[3] or ARGV[3] == consumer['name']
  if is_meant and consumer['pending'] == 0 and consumer['idle'] >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer['name'])
  end
end
return 1
""")

# KEYS: hash. ARGV: fields, each followed by a value. Deletes the fields that still have this value.
DELETE_UNCHANGED = Script("""
for at = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[at]) == ARGV[at + 1] then redis.call('HDEL', KEYS[1], ARGV[at]) end
end
return 1
""")


class DepartedConsumers:
    """Finds and removes the consumers and heartbeats of pods that have ended."""

    def __init__(self, client: RedisClient, spec: SubscriptionSpec) -> None:
        self._client, self._spec = client, spec
        self._heartbeats: dict[bytes, bytes] = {}  # as read last

    async def remove(self, min_idle_ms: int = MIN_IDLE_MS) -> None:
        """Remove idle consumers without pending messages, and heartbeats that are the same as at the last call."""
        before, self._heartbeats = self._heartbeats, await self._read_heartbeats()
        unchanged = [part for item in self._heartbeats.items() if item in before.items() for part in item]
        if unchanged:
            await self._client.run_script(DELETE_UNCHANGED, [self._spec.ledger], unchanged)
        await self._delete_consumers(min_idle_ms)

    async def remove_own(self) -> None:
        """Remove the consumer of this subscription unless it has pending messages."""
        await self._delete_consumers(0, self._spec.consumer)

    async def _read_heartbeats(self) -> dict[bytes, bytes]:
        records = to_dict(await self._client.command("HGETALL", self._spec.ledger))
        return {key: value for key, value in records.items() if key.startswith(worker_key(""))}

    async def _delete_consumers(self, min_idle_ms: int, *names: str) -> None:
        args: list[Arg] = [self._spec.group, min_idle_ms, *names]
        await self._client.run_script(DELETE_CONSUMERS, [self._spec.source], args)
