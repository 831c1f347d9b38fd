-- Frees the lock on this node if the token holds it.
--
-- KEYS[1]  the lock: the holder's token
-- ARGV[1]  token
--
-- Returns 1 when the token held the lock here, 0 when not.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
return redis.call('DEL', KEYS[1])
