-- Free the lock on this node if the token holds it.
--
-- KEYS[1]  lock: token of the holder
-- ARGV[1]  token
--
-- Returns 1 if the token held the lock on this node, 0 if not.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
return redis.call('DEL', KEYS[1])
