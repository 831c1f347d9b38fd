-- Remove from the queue orders that were saved: their reserved units are sold.
-- KEYS[1]   the reservations: a hash of order id to reservation
-- KEYS[2]   the units reserved: a hash of counter name to units
-- KEYS[3]   the queue: a stream
-- KEYS[4]   the place of the last order that was taken off the queue
-- ARGV[1]   the group of workers
-- ARGV[2..] for each order its id, then its entry in the queue
-- Returns for each order 1 when it had a reservation, 0 when it was taken off before, and -1 when it was on the queue
-- without a readable reservation: then only the entry is removed, and an unreadable reservation stays.

local results, units, ended, entries = {}, {}, {}, {}
local last = tonumber(redis.call("GET", KEYS[4]) or 0)
local newest = last
for number = 2, #ARGV, 2 do
    local order, entry = ARGV[number], ARGV[number + 1]
    local items, reservation = items_of(redis.call("HGET", KEYS[1], order))
    if items then
        for _, item in ipairs(items) do
            units[item[1]] = (units[item[1]] or 0) + item[2]
        end
        if type(reservation.place) == "number" and newest < reservation.place then
            newest = reservation.place
        end
        ended[#ended + 1] = order
        results[#results + 1] = 1
    else
        results[#results + 1] = -#redis.call("XRANGE", KEYS[3], entry, entry)
    end
    entries[#entries + 1] = entry
end
-- Writes that need memory come first: a full Redis refuses them, and does not undo what was written before.
for counter, sold in pairs(units) do
    if redis.call("HINCRBY", KEYS[2], counter, -sold) == 0 then
        redis.call("HDEL", KEYS[2], counter)
    end
end
if last < newest then
    redis.call("SET", KEYS[4], string.format("%.0f", newest))
end
if #ended > 0 then
    redis.call("HDEL", KEYS[1], unpack(ended))
end
redis.call("XACK", KEYS[3], ARGV[1], unpack(entries))
redis.call("XDEL", KEYS[3], unpack(entries))
return results
