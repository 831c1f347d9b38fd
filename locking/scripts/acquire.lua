-- Grants the lock to a token, or notes the token as a waiter. Asking again with the same token is harmless.
--
-- KEYS[1]  the lock: the holder's token
-- KEYS[2]  the last fence
-- KEYS[3]  waiters: token, scored with the server's ms until which it counts
-- ARGV[1]  token
-- ARGV[2]  TTL in ms
-- ARGV[3]  1 to be noted as a waiter when refused, otherwise 0
--
-- Returns {1, fence} when granted, {0, ms until the present grant expires} when refused.

local token, ttl = ARGV[1], tonumber(ARGV[2])
local holder = redis.call('SET', KEYS[1], token, 'NX', 'GET', 'PX', ttl)
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]

if holder and holder ~= token then
    if ARGV[3] == '1' then
        -- It looks again after its own TTL at the latest; a TTL later it is taken for dead.
        local now = math.floor(now_us / 1000)
        redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
        redis.call('ZADD', KEYS[3], now + 2 * ttl, token)
        if redis.call('PTTL', KEYS[3]) < 2 * ttl then
            redis.call('PEXPIRE', KEYS[3], 2 * ttl)
        end
    end
    return {0, redis.call('PTTL', KEYS[1])}
end

local last = tonumber(redis.call('GET', KEYS[2]) or 0)
local fence = math.max(now_us, last + 1)
if holder then
    redis.call('PEXPIRE', KEYS[1], ttl)
    if last > 0 then
        fence = last
    end
end
-- Forgotten when nobody has asked for long: the clock alone keeps it growing after that.
redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', math.max(10 * ttl, 60000))
redis.call('ZREM', KEYS[3], token)
return {1, fence}
