-- Ends a wait, and passes on a wake that the waiter may have used up.
--
-- KEYS[1]  the lock: the holder's token
-- KEYS[2]  waiters: token, scored with the server's ms until which it counts
-- KEYS[3]  wake: the list that waiters are blocked on
-- KEYS[4]  bell: the list that only this waiter is blocked on
-- ARGV[1]  token
-- ARGV[2]  ms after which a wake or a bell that nobody took is forgotten
-- ARGV[3]  1 when the waiter may still be blocked, otherwise 0
--
-- Returns nothing.

redis.call('ZREM', KEYS[2], ARGV[1])
if ARGV[3] == '1' then
    -- Its pop names the bell before the wake: it takes the bell, and leaves a wake to somebody who stays.
    redis.call('RPUSH', KEYS[4], 1)
    redis.call('PEXPIRE', KEYS[4], ARGV[2])
end

if redis.call('EXISTS', KEYS[1]) == 0 and redis.call('ZCARD', KEYS[2]) > 0 then
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    if redis.call('ZCOUNT', KEYS[2], '(' .. now, '+inf') > 0 then
        if redis.call('LLEN', KEYS[3]) == 0 then
            redis.call('RPUSH', KEYS[3], 1)
        end
        redis.call('PEXPIRE', KEYS[3], ARGV[2])
    end
end
