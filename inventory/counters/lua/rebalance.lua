-- Distribute the units of a sku evenly over the counters of its segments.
-- KEYS[1]   the number of segments of the sku
-- KEYS[2]   the units reserved: a hash of counter name to units
-- KEYS[3]   the reservations: a hash of order id to reservation
-- KEYS[4..] the counters: of the existing segments, and of those to create
-- ARGV[1]   the number of segments that the caller knows; 0 when there are none and the script creates them
-- ARGV[2]   the number of segments that get units; the counters of the others are set to 0 and stay, because reserved
--           units may come back to them
-- ARGV[3]   units on hand, to load the counters from (see load.lua); "" to distribute what the counters hold
-- ARGV[4]   units that the first counter gets in addition to its share
-- ARGV[5]   the common prefix of the names of the sku's counters
-- ARGV[6..] ids of orders that have a reservation and are committed: their units are no longer on hand
-- Returns {units in the counters before, units after}. It changes nothing if ARGV[3] is "" and the counters hold fewer
-- than ARGV[4] units. It changes nothing and returns false if the sku has more segments than the caller knows, or none
-- although the caller knows some.

local existing, known = tonumber(redis.call("GET", KEYS[1]) or 0), tonumber(ARGV[1])
if existing > known or (existing == 0 and known > 0) then
    return false
end
local function is_of_sku(name)
    return string.sub(name, 1, #ARGV[5]) == ARGV[5]
end
local before, segment_count, first = 0, tonumber(ARGV[2]), tonumber(ARGV[4])
for index = 4, #KEYS do
    before = before + tonumber(redis.call("GET", KEYS[index]) or 0)
end
local units = before
if ARGV[3] ~= "" then
    units = tonumber(ARGV[3])
    local reserved = redis.call("HGETALL", KEYS[2])
    for index = 1, #reserved, 2 do
        units = units - (is_of_sku(reserved[index]) and reserved[index + 1] or 0)
    end
    for index = 6, #ARGV do
        local encoded = redis.call("HGET", KEYS[3], ARGV[index])
        for _, item in ipairs(items_of(encoded) or {}) do
            units = units + (is_of_sku(item[1]) and item[2] or 0)
        end
    end
end
if ARGV[3] ~= "" or units >= first then
    local shared = units - first
    for index = 4, #KEYS do
        local number = index - 4
        local share = 0
        if number < segment_count then
            share = math.floor(shared / segment_count) + (number < shared % segment_count and 1 or 0)
        end
        redis.call("SET", KEYS[index], string.format("%.0f", share + (number == 0 and first or 0)))
    end
    redis.call("SET", KEYS[1], math.max(existing, segment_count, #KEYS - 3))
end
return {string.format("%.0f", before), string.format("%.0f", units)}
