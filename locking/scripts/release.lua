-- Frees the lock if the token holds it, and wakes one waiter if there is any. Without waiters it only deletes.
--
-- KEYS[1]  the lock: the holder's token
-- KEYS[2]  waiters: token, scored with the server's ms until which it counts
-- KEYS[3]  wake: the list that waiters are blocked on
-- ARGV[1]  token
-- ARGV[2]  ms after which a wake that nobody took is forgotten
--
-- Returns 1 when the token held the lock, 0 when not.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
redis.call('DEL', KEYS[1])

if redis.call('ZCARD', KEYS[2]) > 0 then
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    if redis.call('ZCOUNT', KEYS[2], '(' .. now, '+inf') > 0 then
        -- One wake is enough: who takes it and holds the lock wakes the next one.
        if redis.call('LLEN', KEYS[3]) == 0 then
            redis.call('RPUSH', KEYS[3], 1)
        end
        redis.call('PEXPIRE', KEYS[3], ARGV[2])
    end
end
return 1
