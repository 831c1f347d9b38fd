-- End a wait.
--
-- KEYS[1]  waiters: sorted set of tokens; the score is the server time in ms until which a waiter counts as alive
-- KEYS[2]  bell: list that only this waiter is blocked on
-- ARGV[1]  token
-- ARGV[2]  ms after which an unused bell expires
-- ARGV[3]  1 if the waiter may still be blocked, otherwise 0
--
-- Returns nothing.

redis.call('ZREM', KEYS[1], ARGV[1])
if ARGV[3] == '1' then
    redis.call('RPUSH', KEYS[2], 1)
    redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
