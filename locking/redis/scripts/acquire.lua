-- Grants the lock to a token, or notes the token as a waiter. Asking again with the same token is harmless.
--
-- KEYS[1]  the lock: the holder's token
-- KEYS[2]  the last grant: its fence and, for people to read, its holder
-- KEYS[3]  waiters: token, scored with the server's ms until which it counts
-- KEYS[4]  wake: the grant of a release, until a waiter pops it
-- ARGV[1]  token
-- ARGV[2]  TTL in ms
-- ARGV[3]  1 to be noted as a waiter when refused, otherwise 0
-- ARGV[4]  who asks, for people to read
--
-- Returns {1, fence} when granted, {0, ms until the present grant expires} when refused.

local token, ttl, waits = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local holder = redis.call('SET', KEYS[1], token, 'NX', 'GET', 'PX', ttl)
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '0', '^%d+'))
local fence = math.max(now_us, last + 1)
-- Forgotten when nobody has asked for long: the clock alone keeps it growing after that.
local forgotten = math.max(10 * ttl, 60000)

-- Nobody holds what a release has granted to whoever is woken, when nobody was asleep.
local nobodys = holder and holder ~= token and redis.call('LINDEX', KEYS[4], 0) == holder
local refused = holder and holder ~= token and not nobodys

local waited_for = not refused and redis.call('EXISTS', KEYS[3], KEYS[4]) > 0

if not holder and waited_for then
    -- Its holder has died. Those who sleep have come before: it is theirs.
    redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
    if redis.call('ZCARD', KEYS[3]) > (redis.call('ZSCORE', KEYS[3], token) and 1 or 0) then
        local grant = string.format('%.0f ', fence) .. ARGV[2] .. ' ' .. token
        redis.call('SET', KEYS[1], grant, 'PX', ttl)
        redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', forgotten)
        redis.call('DEL', KEYS[4])
        redis.call('RPUSH', KEYS[4], grant)
        redis.call('PEXPIRE', KEYS[4], ttl)
        refused = true
    end
end

if refused then
    if waits then
        -- Who waits for a server that is gone waits no longer: neither the log nor a replica needs to know.
        redis.set_repl(redis.REPL_NONE)
        -- It looks again after its own TTL at the latest; a TTL later it is taken for dead.
        redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
        redis.call('ZADD', KEYS[3], now + 2 * ttl, token)
        if redis.call('PTTL', KEYS[3]) < 2 * ttl then
            redis.call('PEXPIRE', KEYS[3], 2 * ttl)
        end
    end
    return {0, redis.call('PTTL', KEYS[1])}
end

if nobodys then
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
-- For replicas, whose clocks may be behind. After a restart our own clock alone keeps it growing, so the log need not
-- know: with `appendfsync always` each entry costs everybody a wait for the disk.
redis.set_repl(redis.REPL_REPLICA)
redis.call('SET', KEYS[2], string.format('%.0f ', fence) .. ARGV[4], 'PX', forgotten)
return {1, fence}
