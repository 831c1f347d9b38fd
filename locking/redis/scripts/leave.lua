-- Ends a wait.
--
-- KEYS[1]  waiters: token, scored with the server's ms until which it counts
-- KEYS[2]  bell: the list that only this waiter is blocked on
-- ARGV[1]  token
-- ARGV[2]  ms after which a bell that nobody took is forgotten
-- ARGV[3]  1 when the waiter may still be blocked, otherwise 0
--
-- Returns nothing.

redis.call('ZREM', KEYS[1], ARGV[1])
if ARGV[3] == '1' then
    redis.call('RPUSH', KEYS[2], 1)
    redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
