-- End the reservation of an order: its units were sold, or go back to their counters.
-- KEYS[1]   the reservations: a hash of order id to reservation
-- KEYS[2]   the units reserved: a hash of counter name to units
-- KEYS[3..] the counter of each item
-- ARGV[1]   the order id
-- ARGV[2]   "sold" or "back"
-- Returns 1 when the reservation was ended; 0 when there was none, or when it cannot be read and stays.

local encoded = redis.call("HGET", KEYS[1], ARGV[1])
if not encoded then
    return 0
end
local items = items_of(encoded)
if not items then
    return 0
end
-- Writes that need memory come first: a full Redis refuses them, and does not undo what was written before.
for index, item in ipairs(items) do
    if redis.call("HINCRBY", KEYS[2], item[1], -item[2]) == 0 then
        redis.call("HDEL", KEYS[2], item[1])
    end
    -- Do not create a missing counter: its sale has ended, and a new counter would sell units again.
    if ARGV[2] == "back" and redis.call("EXISTS", KEYS[index + 2]) == 1 then
        redis.call("INCRBY", KEYS[index + 2], item[2])
    end
end
redis.call("HDEL", KEYS[1], ARGV[1])
return 1
