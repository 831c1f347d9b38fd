-- Free the idempotency key of an order that was sold and taken off the queue, but is missing in Postgres now.
-- KEYS[1]   the reservations: a hash of order id to reservation
-- KEYS[2]   the customer's idempotency key: the id of the order that has it
-- KEYS[3]   the outcome of that order
-- KEYS[4..] for each item the units bought of its sku: a hash of "sale:customer" to units
-- ARGV[1]   the id of the lost order
-- ARGV[2]   "sale:customer"
-- ARGV[3..] for each item its units, which no longer count as bought
-- Returns 1 when the key was freed; 0 when the lost order does not have it, is queued, or has an outcome.

if redis.call("GET", KEYS[2]) ~= ARGV[1] or redis.call("HEXISTS", KEYS[1], ARGV[1]) == 1
    or redis.call("EXISTS", KEYS[3]) == 1 then
    return 0
end
for index = 4, #KEYS do
    local bought = tonumber(redis.call("HGET", KEYS[index], ARGV[2]) or 0)
    if bought > 0 then
        redis.call("HINCRBY", KEYS[index], ARGV[2], -math.min(bought, tonumber(ARGV[index - 1])))
    end
end
redis.call("DEL", KEYS[2])
return 1
