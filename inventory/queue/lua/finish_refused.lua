-- Remove from the queue an order that was refused: its units go back.
-- KEYS[1]   the reservations: a hash of order id to reservation
-- KEYS[2]   the units reserved: a hash of counter name to units
-- KEYS[3]   the queue: a stream
-- KEYS[4]   the customer's idempotency key: the id of the order that has it
-- KEYS[5]   the place of the last order that was taken off the queue
-- KEYS[6]   the outcome of the order
-- KEYS[7..] for each item its counter, then the units bought of its sku: a hash of "sale:customer" to units
-- ARGV[1]   the order id
-- ARGV[2]   the entry in the queue
-- ARGV[3]   the group of workers
-- ARGV[4]   the outcome: the id of the order that was saved in its place; or JSON, {"reason": ..., ...}, for a rejected
--           order, which keeps its idempotency key
-- ARGV[5]   seconds for which the outcome is kept
-- Returns 1 when the order had a reservation, 0 when it was taken off before, and -1 when it was on the queue without a
-- readable reservation: then no units go back, and an unreadable reservation stays.

local function take_off()
    redis.call("XACK", KEYS[3], ARGV[3], ARGV[2])
    redis.call("XDEL", KEYS[3], ARGV[2])
    if string.sub(ARGV[4], 1, 1) ~= "{" then
        redis.call("DEL", KEYS[4])  -- Postgres knows whether another order has the key.
    end
end

local was_queued = #redis.call("XRANGE", KEYS[3], ARGV[2], ARGV[2])
local encoded = redis.call("HGET", KEYS[1], ARGV[1])
if was_queued == 0 and not encoded then
    redis.call("XACK", KEYS[3], ARGV[3], ARGV[2])
    return 0
end
-- Writes that need memory come first: a full Redis refuses them, and does not undo what was written before.
redis.call("SET", KEYS[6], ARGV[4], "EX", ARGV[5])
local items, reservation = items_of(encoded)
if not items then
    take_off()
    return -was_queued
end
for index, item in ipairs(items) do
    if redis.call("HINCRBY", KEYS[2], item[1], -item[2]) == 0 then
        redis.call("HDEL", KEYS[2], item[1])
    end
    -- There is no key if the entry lists fewer items than the reservation.
    local counter, bought = KEYS[5 + 2 * index], KEYS[6 + 2 * index]
    if counter then
        if redis.call("EXISTS", counter) == 1 then
            redis.call("INCRBY", counter, item[2])
        end
        if type(reservation.buyer) == "string" and redis.call("HEXISTS", bought, reservation.buyer) == 1 then
            redis.call("HINCRBY", bought, reservation.buyer, -item[2])
        end
    end
end
if type(reservation.place) == "number" and tonumber(redis.call("GET", KEYS[5]) or 0) < reservation.place then
    redis.call("SET", KEYS[5], string.format("%.0f", reservation.place))
end
redis.call("HDEL", KEYS[1], ARGV[1])
take_off()
return 1
