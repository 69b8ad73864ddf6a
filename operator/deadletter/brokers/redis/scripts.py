"""The Lua scripts: each is atomic, and harmless when run again after a lost reply.

Every writing script checks first that its caller may still write: a mover by the fence of its box, a courier by what
it holds. When Redis is out of memory it refuses `PUT` before its first line; what settles is let through, for it
frees memory.
"""

from dataclasses import dataclass, field
from hashlib import sha1


@dataclass(slots=True, frozen=True)
class Script:
    """A script and the digest by which Redis knows it."""

    body: str
    flags: str = "allow-oom"
    text: str = field(init=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", f"#!lua flags={self.flags}\n{self.body}")
        # Redis names scripts by SHA-1; nothing secret hangs on it.
        object.__setattr__(self, "digest", sha1(self.text.encode(), usedforsecurity=False).hexdigest())


# Lua's unpack() ends at 8,000 values (LUAI_MAXCSTACK), an entry of a stream does not. A vararg has no such bound, so a
# long list is gathered in one, `_STRIDE` words a call. Each call copies what the ones before gathered: 20,000 fields
# take about 20 ms, 100,000 about 200 ms.
ARGS_PER_CALL = 200
_SPREAD = f"""
local function gather(call, words, first, last, ...)
  if last < first then return call(...) end
  local at = last - {ARGS_PER_CALL - 1}
  return gather(call, words, first, at - 1, {", ".join(f"words[at + {n}]" for n in range(ARGS_PER_CALL))}, ...)
end
local function spread(call, words, first, last)
  local rest = (last - first + 1) % {ARGS_PER_CALL}
  return gather(call, words, first, last - rest, unpack(words, last - rest + 1, last))
end
"""

_NOW = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

# KEYS: guard, target, marks, due, produced. ARGV: mode (free, fence, claim, held), token or group, consumer,
# life of a mark in ms, note it in produced?, then per letter: mark (with claim and held: the claim's id), wait in ms,
# number of fields, fields. Answers per letter: 1 published, 0 was published before, -1 not ours. Redis undoes nothing
# when a script fails half way, so each letter has its mark before the next one is published; a letter that Redis
# refuses ends the script with its error, after `produced` is noted.
PUBLISH = Script(
    _NOW
    + _SPREAD
    + """
local mode, who, consumer, life, noted = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'
local target, marks = KEYS[2], KEYS[3]
if mode == 'fence' and redis.call('GET', KEYS[1]) ~= who then return redis.error_reply('FENCED') end
local open = mode == 'free' or mode == 'fence'
local function ours(id)
  if mode == 'claim' then
    local found = redis.call('XPENDING', KEYS[1], who, id, id, 1)
    return found[1] and found[1][2] == consumer
  end
  return redis.call('HGET', KEYS[1], id) == consumer
end
local starts, names, at = {}, {}, 6
while at <= #ARGV do
  starts[#starts + 1], names[#names + 1] = at, ARGV[at]
  at = at + 3 + tonumber(ARGV[at + 2])
end
redis.call('ZREMRANGEBYSCORE', marks, '-inf', now)
local known = redis.call('ZMSCORE', marks, unpack(names))
local ends = string.format('%.0f', now + life)
local function add(...) return redis.pcall('XADD', target, 'NOMKSTREAM', '*', ...) end
local out, first, last, count, seen, refused = {}, false, false, 0, {}, false
for index, start in ipairs(starts) do
  local name, wait = ARGV[start], ARGV[start + 1]
  if not open and not ours(name) then out[index] = -1
  elseif known[index] or seen[name] then out[index] = 0
  else
    local id
    if wait == '' then
      id = spread(add, ARGV, start + 3, start + 2 + tonumber(ARGV[start + 2]))
    elseif redis.call('EXISTS', target) == 1 then
      id = string.format('%.0f', now) .. '-' .. redis.call('HINCRBY', target, '', 1)
      redis.call('HSET', target, id, ARGV[start + 3])
      redis.call('ZADD', KEYS[4], string.format('%.0f', now + wait), id)
    end
    if not id then return redis.error_reply('NOBOX ' .. target) end  -- at the first letter, or never
    if type(id) == 'table' then
      refused = id
      break
    end
    redis.call('ZADD', marks, ends, name)
    seen[name], out[index], first, last, count = true, 1, first or id, id, count + 1
  end
end
if noted and first then redis.call('RPUSH', KEYS[5], target .. ' ' .. first .. ' ' .. last .. ' ' .. count) end
return refused or out
""",
    flags="",
)

# KEYS: fence, box, archive, ledger, selected. ARGV: token, tally field, tally, selection, number of letters to
# archive, their ids, ids to delete. What is archived leaves the box at once, so that a step is never in memory twice.
# One script: letters that were archived without their tally would never be counted.
SETTLE = Script(
    _SPREAD
    + """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('FENCED') end
local archived = tonumber(ARGV[5])
local function add(...) return redis.call('XADD', KEYS[3], '*', ...) end
for at = 6, 5 + archived do
  local found = redis.call('XRANGE', KEYS[2], ARGV[at], ARGV[at])
  if found[1] then spread(add, found[1][2], 1, #found[1][2]) end
  redis.call('XDEL', KEYS[2], ARGV[at])
end
for at = 6 + archived, #ARGV, 1000 do redis.call('XDEL', KEYS[2], unpack(ARGV, at, math.min(at + 999, #ARGV))) end
if ARGV[4] ~= '' then redis.call('RPUSH', KEYS[5], ARGV[4]) end
redis.call('HSET', KEYS[4], ARGV[2], ARGV[3])
return 1
"""
)

# KEYS: source, notes, published. ARGV: group, consumer, ids. Answers per id: 1 acknowledged, 0 not ours.
ACKNOWLEDGE = Script("""
local out = {}
for at = 3, #ARGV do
  local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[at], ARGV[at], 1)
  if found[1] and found[1][2] == ARGV[2] then
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[at])
    redis.call('HDEL', KEYS[2], ARGV[at])
    redis.call('ZREM', KEYS[3], ARGV[at])
    out[#out + 1] = 1
  else out[#out + 1] = 0 end
end
return out
""")

# KEYS: source, notes. ARGV: group, consumer, then per message: id, note. What is not ours is passed over: its note may
# be another's by now, or never be deleted.
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

# KEYS: source. ARGV: group, consumer, idle time to set, ids. Answers the ids that are not ours any more.
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

# KEYS: retry, due, holders, published, lost. ARGV: consumer, lease, most letters, most bytes. Answers how many wait,
# how many were gone, then id and letter of each that was taken. One whose holder died after it had published it
# elsewhere is settled instead. One without a letter was deleted by others; it is counted for the sweep too.
CLAIM_DUE = Script(
    _NOW
    + """
local out, room = {redis.call('ZCARD', KEYS[2]), 0}, tonumber(ARGV[4])
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[3])) do
  local letter = redis.call('HGET', KEYS[1], id)
  local published = redis.call('ZREM', KEYS[4], id) == 1
  if published or not letter then
    if not published then
      out[2] = out[2] + 1
      redis.call('INCR', KEYS[5])
    end
    redis.call('HDEL', KEYS[1], id)
    redis.call('ZREM', KEYS[2], id)
    redis.call('HDEL', KEYS[3], id)
  else
    room = room - #letter
    if room < 0 and #out > 2 then break end
    redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), id)
    redis.call('HSET', KEYS[3], id, ARGV[1])
    out[#out + 1], out[#out + 2] = id, letter
  end
end
return out
"""
)

# KEYS: due, holders. ARGV: consumer, lease, ids. Answers the ids that are not ours any more.
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

# KEYS: due, holders. ARGV: consumer. Whatever this consumer holds is due again.
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

# KEYS: retry, due, holders, published. ARGV: consumer, then per letter: id, wait in ms or nothing, letter. With a wait
# the letter is laid back unless it was published elsewhere, without one it is settled. Answers per letter: 1 done,
# 0 not ours.
SETTLE_DUE = Script(
    _NOW
    + """
local out = {}
for at = 2, #ARGV, 3 do
  local id = ARGV[at]
  if redis.call('HGET', KEYS[3], id) ~= ARGV[1] then out[#out + 1] = 0
  else
    if redis.call('ZREM', KEYS[4], id) == 1 or ARGV[at + 1] == '' then
      redis.call('HDEL', KEYS[1], id)
      redis.call('ZREM', KEYS[2], id)
    else
      redis.call('HSET', KEYS[1], id, ARGV[at + 2])
      redis.call('ZADD', KEYS[2], string.format('%.0f', now + ARGV[at + 1]), id)
    end
    redis.call('HDEL', KEYS[3], id)
    out[#out + 1] = 1
  end
end
return out
"""
)

# KEYS: box, its id key. ARGV: new id, kind (stream, hash). Creates the box and its id unless the key is taken.
# A sorted set cannot be empty, so a retry box is its hash, with the counter of its letters as first field.
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

# KEYS: stream. ARGV: first id, how many. Answers ids alone.
LIST_IDS = Script(
    """
local out = {}
for index, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])) do out[index] = entry[1] end
return out
""",
    flags="no-writes",
)
