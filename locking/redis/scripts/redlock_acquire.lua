-- Grants the lock on this node to a token if nobody holds it here.
--
-- KEYS[1]  the lock: the holder's token
-- ARGV[1]  token
-- ARGV[2]  TTL in ms
--
-- Returns 1 when granted, otherwise the token that holds it.

return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET', 'PX', ARGV[2]) or 1
