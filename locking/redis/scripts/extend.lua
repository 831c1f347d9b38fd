-- Keep the lock for the token that holds it. The script shortens the remaining time only if ARGV[5] says so.
--
-- KEYS[1]  lock: token of the holder
-- KEYS[2]  last grant: its fence and the label of its holder, for display; the script renews its expiry
-- KEYS[3]  waiters
-- ARGV[1]  token
-- ARGV[2]  token under which the holder waited; empty if it did not wait
-- ARGV[3]  TTL in ms from now
-- ARGV[4]  fence and label of the holder
-- ARGV[5]  1 to set the TTL although more time is left, otherwise 0
--
-- Returns 1 if the token holds the lock, 0 if not.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
local ttl = tonumber(ARGV[3])
local left = redis.call('PTTL', KEYS[1])
if left < ttl or ARGV[5] == '1' then
    redis.call('PEXPIRE', KEYS[1], ttl)
    left = ttl
end
-- Record the label of a holder that was handed the lock, and remove it from the waiters.
redis.call('SET', KEYS[2], ARGV[4], 'PX', math.max(10 * left, 60000))
redis.call('ZREM', KEYS[3], ARGV[2])
return 1
