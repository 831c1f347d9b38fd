-- Keep the lock on this node for the token that holds it. Never shortens the remaining time, and never grants the lock
-- again: an extension that arrives after the release would leave a grant that has no holder.
--
-- KEYS[1]  lock: token of the holder
-- ARGV[1]  token
-- ARGV[2]  TTL in ms from now
--
-- Returns 1 if the token holds the lock on this node, 0 if not.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
