-- Grant the lock to a token, or record the token as a waiter. Repeating the call with the same token is harmless.
--
-- KEYS[1]  lock: token of the holder
-- KEYS[2]  last grant: its fence and the label of its holder, for display
-- KEYS[3]  waiters: sorted set of tokens; the score is the server time in ms until which a waiter counts as alive
-- KEYS[4]  wake: list with the last offer, a grant for the waiter that pops it first. The list lasts until the pop or
--          the next grant. It outlives the offered grant, for as long as a waiter may count as alive.
-- ARGV[1]  token
-- ARGV[2]  TTL in ms
-- ARGV[3]  1 to be recorded as a waiter if refused, otherwise 0
-- ARGV[4]  label of the caller, for display
--
-- Returns {1, fence} if granted, {0, ms until the present grant expires} if refused.

local token, ttl, waits = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local holder = redis.call('SET', KEYS[1], token, 'NX', 'GET', 'PX', ttl)
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '0', '^%d+'))
local fence = math.max(now_us, last + 1)
-- The last fence may expire if the lock is unused for a long time: then the clock alone keeps the fence growing.
local forgotten = math.max(10 * ttl, 60000)

-- The offer is unclaimed: the lock was granted to its waiters, but none of them was blocked on the list.
local unclaimed = holder and holder ~= token and redis.call('LINDEX', KEYS[4], 0) == holder
local refused = holder and holder ~= token and not unclaimed

local waited_for = not refused and redis.call('EXISTS', KEYS[3], KEYS[4]) > 0

-- An offer that has expired unpopped shows that the listed waiters have died: grant to the caller below.
if not holder and waited_for and redis.call('EXISTS', KEYS[4]) == 0 then
    -- No offer: the holder has died. Sleeping waiters came before the caller, so offer them the lock.
    redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
    if redis.call('ZCARD', KEYS[3]) > (redis.call('ZSCORE', KEYS[3], token) and 1 or 0) then
        local grant = string.format('%.0f ', fence) .. ARGV[2] .. ' ' .. token
        redis.call('SET', KEYS[1], grant, 'PX', ttl)
        redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', forgotten)
        redis.call('DEL', KEYS[4])
        redis.call('RPUSH', KEYS[4], grant)
        redis.call('PEXPIRE', KEYS[4], math.max(ttl, redis.call('PTTL', KEYS[3])))
        refused = true
    end
end

if refused then
    if waits then
        -- Waiters do not outlive the server that they wait for, so neither the log nor a replica needs this write.
        redis.set_repl(redis.REPL_NONE)
        -- A waiter asks again after its own TTL at the latest. One TTL later it counts as dead.
        redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
        redis.call('ZADD', KEYS[3], now + 2 * ttl, token)
        if redis.call('PTTL', KEYS[3]) < 2 * ttl then
            redis.call('PEXPIRE', KEYS[3], 2 * ttl)
        end
    end
    return {0, redis.call('PTTL', KEYS[1])}
end

if unclaimed then
    redis.call('SET', KEYS[1], token, 'PX', ttl)
elseif holder then
    redis.call('PEXPIRE', KEYS[1], ttl)
    if last > 0 then
        fence = last
    end
end
if waited_for then
    redis.call('ZREM', KEYS[3], token)
    redis.call('DEL', KEYS[4])
end
-- Replicas need the fence because their clocks may be behind. After a restart, this server's own clock keeps the fence
-- growing, so the log does not need it: with `appendfsync always`, each log entry makes every client wait for the disk.
redis.set_repl(redis.REPL_REPLICA)
redis.call('SET', KEYS[2], string.format('%.0f ', fence) .. ARGV[4], 'PX', forgotten)
return {1, fence}
