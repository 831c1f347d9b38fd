-- Keeps the lock for the token that holds it. It shortens what is left only when told to.
--
-- KEYS[1]  the lock: the holder's token
-- KEYS[2]  the last grant: its fence and, for people to read, its holder; kept for as long as after a grant
-- KEYS[3]  waiters
-- ARGV[1]  token
-- ARGV[2]  the token under which the holder has waited, if it has
-- ARGV[3]  TTL in ms from now
-- ARGV[4]  fence and holder
-- ARGV[5]  1 to set the TTL although more is left, otherwise 0
--
-- Returns 1 when the token holds the lock, 0 when not.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
local ttl = tonumber(ARGV[3])
local left = redis.call('PTTL', KEYS[1])
if left < ttl or ARGV[5] == '1' then
    redis.call('PEXPIRE', KEYS[1], ttl)
    left = ttl
end
-- Who was woken is known by name from now on, and is no waiter any more.
redis.call('SET', KEYS[2], ARGV[4], 'PX', math.max(10 * left, 60000))
redis.call('ZREM', KEYS[3], ARGV[2])
return 1
