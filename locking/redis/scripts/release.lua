-- Release the lock if the token holds it. If there are waiters, grant it to the waiter that has slept longest. If there
-- are none, only delete the key.
--
-- KEYS[1]  lock: token of the holder
-- KEYS[2]  last grant: its fence and the label of its holder, for display
-- KEYS[3]  waiters: sorted set of tokens; the score is the server time in ms until which a waiter counts as alive
-- KEYS[4]  wake: list that waiters are blocked on; keeps an unclaimed offer for as long as a waiter may count as alive
-- ARGV[1]  token
-- ARGV[2]  token under which the holder waited; empty if it did not wait
-- ARGV[3]  TTL in ms
-- ARGV[4]  random text for the token of the grant
--
-- Returns 1 if the token held the lock, 0 if not.

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
        -- The token of the grant contains the fence and the TTL, for the waiter that pops the token. Until then, any
        -- client may claim the grant.
        local grant = fence .. ' ' .. ARGV[3] .. ' ' .. ARGV[4]
        redis.call('SET', KEYS[1], grant, 'PX', ttl)
        redis.call('SET', KEYS[2], fence, 'PX', math.max(10 * ttl, 60000))
        redis.call('DEL', KEYS[4])
        redis.call('RPUSH', KEYS[4], grant)
        redis.call('PEXPIRE', KEYS[4], math.max(ttl, redis.call('PTTL', KEYS[3])))
        return 1
    end
end
redis.call('DEL', KEYS[1])
return 1
