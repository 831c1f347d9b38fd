-- Keeps the lock for the token that holds it. It never shortens what is left.
--
-- KEYS[1]  the lock: the holder's token
-- KEYS[2]  the last fence, kept for as long as after a grant
-- ARGV[1]  token
-- ARGV[2]  TTL in ms from now
--
-- Returns 1 when the token holds the lock, 0 when not.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
local ttl = tonumber(ARGV[2])
if redis.call('PTTL', KEYS[1]) < ttl then
    redis.call('PEXPIRE', KEYS[1], ttl)
end
redis.call('PEXPIRE', KEYS[2], math.max(10 * ttl, 60000))
return 1
