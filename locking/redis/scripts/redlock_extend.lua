-- Keeps the lock on this node for the token that holds it. It never shortens what is left, and never grants anew: an
-- extension that arrives after the release would linger.
--
-- KEYS[1]  the lock: the holder's token
-- ARGV[1]  token
-- ARGV[2]  TTL in ms from now
--
-- Returns 1 when the token holds the lock here, 0 when not.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
