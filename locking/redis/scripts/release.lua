-- Frees the lock if the token holds it or, when somebody waits, grants it to the waiter that has slept for longest.
-- Without waiters it only deletes.
--
-- KEYS[1]  the lock: the holder's token
-- KEYS[2]  the last grant: its fence and, for people to read, its holder
-- KEYS[3]  waiters: token, scored with the server's ms until which it counts
-- KEYS[4]  wake: the list that waiters are blocked on
-- ARGV[1]  token
-- ARGV[2]  the token under which the holder has waited, if it has
-- ARGV[3]  TTL in ms
-- ARGV[4]  random, for the token of the grant
--
-- Returns 1 when the token held the lock, 0 when not.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
if redis.call('EXISTS', KEYS[3]) == 1 then
    local ttl = tonumber(ARGV[3])
    local time = redis.call('TIME')
    local now_us = time[1] * 1000000 + time[2]
    redis.call('ZREM', KEYS[3], ARGV[2])
    if redis.call('ZCOUNT', KEYS[3], '(' .. math.floor(now_us / 1000), '+inf') > 0 then
        local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '0', '^%d+'))
        local fence = string.format('%.0f', math.max(now_us, last + 1))
        -- Its token says all that the one who pops it has to know. Until somebody does, whoever asks may have it.
        local grant = fence .. ' ' .. ARGV[3] .. ' ' .. ARGV[4]
        redis.call('SET', KEYS[1], grant, 'PX', ttl)
        redis.call('SET', KEYS[2], fence, 'PX', math.max(10 * ttl, 60000))
        redis.call('DEL', KEYS[4])
        redis.call('RPUSH', KEYS[4], grant)
        redis.call('PEXPIRE', KEYS[4], ttl)
        return 1
    end
end
redis.call('DEL', KEYS[1])
return 1
