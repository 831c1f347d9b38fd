-- Set a counter to the units on hand in Postgres minus the units reserved.
-- KEYS[1]   the reservations: a hash of order id to reservation
-- KEYS[2]   the units reserved: a hash of counter name to units
-- KEYS[3]   the counter
-- ARGV[1]   the sku
-- ARGV[2]   units on hand; the caller holds the sku's row lock, so no order of the sku is committed meanwhile
-- ARGV[3]   "make" to create a missing counter, "mend" to correct existing ones only
-- ARGV[4..] ids of orders that have a reservation and are committed: their units are no longer on hand
-- Returns {value before, value after}; a value is false if there was no counter at that time. A value that is not a
-- number counts as 0.

local before = redis.call("GET", KEYS[3])
if not before and ARGV[3] == "mend" then
    return {false, false}
end
local reserved = tonumber(redis.call("HGET", KEYS[2], ARGV[1]) or 0)
for index = 4, #ARGV do
    local encoded = redis.call("HGET", KEYS[1], ARGV[index])
    for _, item in ipairs(items_of(encoded) or {}) do
        if item[1] == ARGV[1] then
            reserved = reserved - item[2]
        end
    end
end
local after = tonumber(ARGV[2]) - reserved
if after ~= tonumber(before) then
    redis.call("SET", KEYS[3], string.format("%.0f", after))
end
return {before and string.format("%.0f", tonumber(before) or 0), string.format("%.0f", after)}
