"""Lua scripts. Each is atomic and may be repeated after a lost reply.

Every script that writes checks first that its caller may still write: a partition writer by the fence of its stream, a
subscription by the claims it holds. A Redis that is out of memory refuses `PUBLISH` before its first line. Scripts that
settle are allowed to run (`allow-oom`), because they free memory.
"""

from dataclasses import dataclass, field
from hashlib import sha1


@dataclass(slots=True, frozen=True)
class Script:
    """A script and the digest by which Redis identifies it."""

    body: str
    flags: str = "allow-oom"
    text: str = field(init=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", f"#!lua flags={self.flags}\n{self.body}")
        # Redis identifies scripts by SHA-1; it is not used for security.
        object.__setattr__(self, "digest", sha1(self.text.encode(), usedforsecurity=False).hexdigest())


# Lua's unpack() is limited to 8,000 values (LUAI_MAXCSTACK); the entries of a stream are not. A vararg has no such
# limit, so a long list is collected in a vararg, `ARGS_PER_CALL` values per call. Each call copies what earlier calls
# have collected: 20,000 fields take about 20 ms, 100,000 about 200 ms.
ARGS_PER_CALL = 200
_CALL_WITH_ALL = f"""
local function collect(call, values, first, last, ...)
  if last < first then return call(...) end
  local at = last - {ARGS_PER_CALL - 1}
  return collect(call, values, first, at - 1, {", ".join(f"values[at + {n}]" for n in range(ARGS_PER_CALL))}, ...)
end
local function call_with_all(call, values, first, last)
  local rest = (last - first + 1) % {ARGS_PER_CALL}
  return collect(call, values, first, last - rest, unpack(values, last - rest + 1, last))
end
"""

_NOW = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

# KEYS: guard, target, marks, due, positions. ARGV: mode (free, fence, claim, held), token or group, consumer,
# lifetime of a mark in ms, whether to append to positions (1 or 0), then per letter: mark (for claim and held: the id
# of the claim), delay in ms or empty, number of fields, fields.
# Returns per letter: 1 published, 0 published before, -1 not ours.
# Redis does not roll back a script that fails half-way, so each letter gets its mark before the next is published. If
# Redis refuses a letter, the positions are recorded and the script ends with the error.
PUBLISH = Script(
    _NOW
    + _CALL_WITH_ALL
    + """
local mode, token, consumer, lifetime = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local record_positions = ARGV[5] == '1'
local target, marks = KEYS[2], KEYS[3]
if mode == 'fence' and redis.call('GET', KEYS[1]) ~= token then return redis.error_reply('FENCED') end
local any_letter = mode == 'free' or mode == 'fence'
local function is_ours(id)
  if mode == 'claim' then
    local found = redis.call('XPENDING', KEYS[1], token, id, id, 1)
    return found[1] and found[1][2] == consumer
  end
  return redis.call('HGET', KEYS[1], id) == consumer
end
local starts, ids, at = {}, {}, 6
while at <= #ARGV do
  starts[#starts + 1], ids[#ids + 1] = at, ARGV[at]
  at = at + 3 + tonumber(ARGV[at + 2])
end
redis.call('ZREMRANGEBYSCORE', marks, '-inf', now)
local marked = redis.call('ZMSCORE', marks, unpack(ids))
local expiry = string.format('%.0f', now + lifetime)
local function add(...) return redis.pcall('XADD', target, 'NOMKSTREAM', '*', ...) end
local results, first, last, count, done, refusal = {}, false, false, 0, {}, false
for index, start in ipairs(starts) do
  local mark, delay = ARGV[start], ARGV[start + 1]
  if not any_letter and not is_ours(mark) then results[index] = -1
  elseif marked[index] or done[mark] then results[index] = 0
  else
    local id
    if delay == '' then
      id = call_with_all(add, ARGV, start + 3, start + 2 + tonumber(ARGV[start + 2]))
    elseif redis.call('EXISTS', target) == 1 then
      id = string.format('%.0f', now) .. '-' .. redis.call('HINCRBY', target, '', 1)
      redis.call('HSET', target, id, ARGV[start + 3])
      redis.call('ZADD', KEYS[4], string.format('%.0f', now + delay), id)
    end
    if not id then return redis.error_reply('NOBOX ' .. target) end  -- only ever at the first letter
    if type(id) == 'table' then
      refusal = id
      break
    end
    redis.call('ZADD', marks, expiry, mark)
    done[mark], results[index], first, last, count = true, 1, first or id, id, count + 1
  end
end
if record_positions and first then
  redis.call('RPUSH', KEYS[5], target .. ' ' .. first .. ' ' .. last .. ' ' .. count)
end
return refusal or results
""",
    flags="",
)

# KEYS: fence, stream, archive, ledger, selected. ARGV: token, name of the progress record, progress, selection, number
# of letters to archive, their ids, ids to delete. An archived letter leaves the stream at once, so that a batch is
# never in memory twice. It is one script, because letters archived without their progress would never be counted.
SETTLE = Script(
    _CALL_WITH_ALL
    + """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('FENCED') end
local archived = tonumber(ARGV[5])
local function add(...) return redis.call('XADD', KEYS[3], '*', ...) end
for at = 6, 5 + archived do
  local found = redis.call('XRANGE', KEYS[2], ARGV[at], ARGV[at])
  if found[1] then call_with_all(add, found[1][2], 1, #found[1][2]) end
  redis.call('XDEL', KEYS[2], ARGV[at])
end
for at = 6 + archived, #ARGV, 1000 do redis.call('XDEL', KEYS[2], unpack(ARGV, at, math.min(at + 999, #ARGV))) end
if ARGV[4] ~= '' then redis.call('RPUSH', KEYS[5], ARGV[4]) end
redis.call('HSET', KEYS[4], ARGV[2], ARGV[3])
return 1
"""
)

# KEYS: source, notes, published. ARGV: group, consumer, ids. Returns per id: 1 acknowledged, 0 not ours.
ACKNOWLEDGE = Script("""
local results = {}
for at = 3, #ARGV do
  local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[at], ARGV[at], 1)
  if found[1] and found[1][2] == ARGV[2] then
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[at])
    redis.call('HDEL', KEYS[2], ARGV[at])
    redis.call('ZREM', KEYS[3], ARGV[at])
    results[#results + 1] = 1
  else results[#results + 1] = 0 end
end
return results
""")

# KEYS: source, notes. ARGV: group, consumer, then per message: id, attempts and first failure. A message that is not
# ours is skipped: another consumer may have recorded more attempts, or the record would never be deleted.
RECORD_ATTEMPTS = Script(
    """
for at = 3, #ARGV, 2 do
  local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[at], ARGV[at], 1)
  if found[1] and found[1][2] == ARGV[2] then redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1]) end
end
return 1
""",
    flags="",
)

# KEYS: source. ARGV: group, consumer, idle time to set in ms, ids. Returns the ids that are not ours any more.
REFRESH_PENDING = Script("""
local lost = {}
for at = 4, #ARGV do
  local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[at], ARGV[at], 1)
  if found[1] and found[1][2] == ARGV[2] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[at], 'IDLE', ARGV[3], 'JUSTID')
  else lost[#lost + 1] = ARGV[at] end
end
return lost
""")

# KEYS: retry, due, holders, published, lost. ARGV: consumer, lease in ms, maximum letters, maximum bytes. Returns how
# many letters are parked, how many were lost, then id and letter of each claimed one. A letter that its holder had
# published elsewhere before it died is settled instead. An id without a letter was deleted by another client; it is
# also counted in `lost` for the sweep.
CLAIM_DUE = Script(
    _NOW
    + """
local results, free_bytes = {redis.call('ZCARD', KEYS[2]), 0}, tonumber(ARGV[4])
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[3])) do
  local letter = redis.call('HGET', KEYS[1], id)
  local published = redis.call('ZREM', KEYS[4], id) == 1
  if published or not letter then
    if not published then
      results[2] = results[2] + 1
      redis.call('INCR', KEYS[5])
    end
    redis.call('HDEL', KEYS[1], id)
    redis.call('ZREM', KEYS[2], id)
    redis.call('HDEL', KEYS[3], id)
  else
    free_bytes = free_bytes - #letter
    if free_bytes < 0 and #results > 2 then break end
    redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), id)
    redis.call('HSET', KEYS[3], id, ARGV[1])
    results[#results + 1], results[#results + 2] = id, letter
  end
end
return results
"""
)

# KEYS: due, holders. ARGV: consumer, lease in ms, ids. Returns the ids that are not ours any more.
REFRESH_DUE = Script(
    _NOW
    + """
local lost = {}
for at = 3, #ARGV do
  if redis.call('HGET', KEYS[2], ARGV[at]) == ARGV[1] then
    redis.call('ZADD', KEYS[1], 'XX', now + tonumber(ARGV[2]), ARGV[at])
  else lost[#lost + 1] = ARGV[at] end
end
return lost
"""
)

# KEYS: due, holders. ARGV: consumer. Makes every letter that this consumer holds due again.
RELEASE_DUE = Script("""
local held = redis.call('HGETALL', KEYS[2])
for at = 1, #held, 2 do
  if held[at + 1] == ARGV[1] then
    redis.call('ZADD', KEYS[1], 'XX', 0, held[at])
    redis.call('HDEL', KEYS[2], held[at])
  end
end
return 1
""")

# KEYS: retry, due, holders, published. ARGV: consumer, then per letter: id, delay in ms or empty, letter. With a delay
# the letter is parked again unless it was published elsewhere; without one it is settled. Returns per letter: 1 done,
# 0 not ours.
SETTLE_DUE = Script(
    _NOW
    + """
local results = {}
for at = 2, #ARGV, 3 do
  local id = ARGV[at]
  if redis.call('HGET', KEYS[3], id) ~= ARGV[1] then results[#results + 1] = 0
  else
    if redis.call('ZREM', KEYS[4], id) == 1 or ARGV[at + 1] == '' then
      redis.call('HDEL', KEYS[1], id)
      redis.call('ZREM', KEYS[2], id)
    else
      redis.call('HSET', KEYS[1], id, ARGV[at + 2])
      redis.call('ZADD', KEYS[2], string.format('%.0f', now + ARGV[at + 1]), id)
    end
    redis.call('HDEL', KEYS[3], id)
    results[#results + 1] = 1
  end
end
return results
"""
)

# KEYS: stream or retry box, its id key. ARGV: new id, type (stream, hash). Creates the key and its id unless it exists.
# A sorted set cannot be empty, so the hash stands for a retry box; its first field is the counter of letters.
CREATE = Script(
    """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if ARGV[2] == 'hash' then redis.call('HSET', KEYS[1], '', 0)
else
  redis.call('XGROUP', 'CREATE', KEYS[1], 'dlq-operator-maker', '$', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', KEYS[1], 'dlq-operator-maker')
end
redis.call('SET', KEYS[2], ARGV[1])
return 1
""",
    flags="",
)

# KEYS: stream. ARGV: first id, maximum number. Returns ids without fields.
LIST_IDS = Script(
    """
local ids = {}
for index, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])) do ids[index] = entry[1] end
return ids
""",
    flags="no-writes",
)

# KEYS: streams. Returns per stream: length, last id, first id, number of entries ever added; empty for other keys.
SUMMARISE = Script(
    """
local results = {}
for index, key in ipairs(KEYS) do
  local key_type, summary = redis.call('TYPE', key)['ok'], {}
  if key_type == 'stream' then
    local reply, info = redis.call('XINFO', 'STREAM', key), {}
    for at = 1, #reply, 2 do info[reply[at]] = reply[at + 1] end
    local first = info['first-entry']
    summary = {info['length'], info['last-generated-id'], first and first[1] or '', info['entries-added'] or -1}
  end
  results[index] = summary
end
return results
""",
    flags="no-writes",
)
