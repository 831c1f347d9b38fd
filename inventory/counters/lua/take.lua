-- Take the units of every item of an order, or none, and reserve them for it.
-- KEYS[1]   the reservations: a hash of order id to reservation
-- KEYS[2]   the units reserved: a hash of counter name to units
-- KEYS[3..] the counter of each item
-- ARGV[1]   the order id
-- ARGV[2]   the reservation: JSON, {"items": [[counter name, units], ...]}; the script adds the server's time
-- Returns {"taken", 1, 0}, {"reserved", item, left}, {"sold out", item, left} or {"not loaded", item, 0}, where item is
-- the position of the item that failed and left includes units reserved for orders that may still fail. The answer
-- is "reserved" if the units suffice only together with the reserved ones: it is too early to say "sold out".

-- A client that lost the answer may send the script again: an existing reservation means that the units were taken.
if redis.call("HEXISTS", KEYS[1], ARGV[1]) == 1 then
    return {"taken", 1, 0}
end
local reservation = cjson.decode(ARGV[2])
for index, item in ipairs(reservation.items) do
    local left = redis.call("GET", KEYS[index + 2])
    if not left then
        return {"not loaded", index, 0}
    end
    if tonumber(left) < item[2] then
        local reserved = tonumber(redis.call("HGET", KEYS[2], item[1]) or 0)
        local total = math.max(0, tonumber(left) + reserved)
        return {total < item[2] and "sold out" or "reserved", index, total}
    end
end
for index, item in ipairs(reservation.items) do
    redis.call("DECRBY", KEYS[index + 2], item[2])
    redis.call("HINCRBY", KEYS[2], item[1], item[2])
end
reservation.at = tonumber(redis.call("TIME")[1])
redis.call("HSET", KEYS[1], ARGV[1], cjson.encode(reservation))
return {"taken", 1, 0}
