-- Grant the lock on this node to a token if it is free here.
--
-- KEYS[1]  lock: token of the holder
-- ARGV[1]  token
-- ARGV[2]  TTL in ms
--
-- Returns 1 if granted, otherwise the token that holds the lock.

return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET', 'PX', ARGV[2]) or 1
