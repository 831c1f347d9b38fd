-- Take the units of every item of an order, or none, reserve them, and append the order to the queue.
-- KEYS[1]   the reservations: a hash of order id to reservation
-- KEYS[2]   the units reserved: a hash of counter name to units
-- KEYS[3]   the queue: a stream
-- KEYS[4]   the customer's idempotency key: the id of the order that has it
-- KEYS[5]   the place of the last order that was queued
-- KEYS[6]   the place of the last order that was taken off the queue
-- KEYS[7]   the wake-up: exists from the moment a worker was woken until it has found the queue empty
-- KEYS[8..] for each item its counter, then the units bought of its sku: a hash of "sale:customer" to units
-- ARGV[1]   the order id
-- ARGV[2]   the reservation: JSON, {"items": [[sku, units, limit or 0, price, name], ...], "buyer": "sale:customer",
--           "key": the idempotency key, "hash": of the body, "request": the order, "trace": its trace, if it has one};
--           the script adds time, place and entry id, and moves order and trace to the entry
-- ARGV[3]   seconds after which a wake-up that no worker has followed expires
-- ARGV[4]   seconds for which the idempotency key is kept
-- Returns {"queued", whether to wake a worker, place in the queue}, {"duplicate", id of the order that has the key, 0},
-- {"over limit", item, units bought before}, {"sold out", item, left} or {"not loaded", item, 0}, where item is the
-- position of the item that failed.

local function place_of(reservation)
    return math.max(1, reservation.place - tonumber(redis.call("GET", KEYS[6]) or 0))
end

local reservation = cjson.decode(ARGV[2])
local existing = redis.call("GET", KEYS[4])
if existing == ARGV[1] then
    -- The client lost the answer and sends the script again. A worker may have saved the order meanwhile.
    local encoded = redis.call("HGET", KEYS[1], ARGV[1])
    return {"queued", 0, encoded and place_of(cjson.decode(encoded)) or 1}
end
if existing then
    return {"duplicate", existing, 0}
end
for index, item in ipairs(reservation.items) do
    local left = redis.call("GET", KEYS[6 + 2 * index])
    if not left then
        return {"not loaded", index, 0}
    end
    if tonumber(left) < item[2] then
        return {"sold out", index, math.max(0, tonumber(left))}
    end
    local bought = tonumber(redis.call("HGET", KEYS[7 + 2 * index], reservation.buyer) or 0)
    if item[3] > 0 and bought + item[2] > item[3] then
        return {"over limit", index, bought}
    end
end
for index, item in ipairs(reservation.items) do
    redis.call("DECRBY", KEYS[6 + 2 * index], item[2])
    redis.call("HINCRBY", KEYS[7 + 2 * index], reservation.buyer, item[2])
    redis.call("HINCRBY", KEYS[2], item[1], item[2])
end
reservation.at = tonumber(redis.call("TIME")[1])
reservation.place = redis.call("INCR", KEYS[5])
local entry = {"id", ARGV[1], "request", reservation.request}
if reservation.trace then
    entry[5], entry[6] = "trace", reservation.trace
end
reservation.entry = redis.call("XADD", KEYS[3], "*", unpack(entry))
reservation.request, reservation.trace = nil, nil  -- The entry in the queue has them.
redis.call("HSET", KEYS[1], ARGV[1], cjson.encode(reservation))
redis.call("SET", KEYS[4], ARGV[1], "EX", ARGV[4])
return {"queued", redis.call("SET", KEYS[7], 1, "NX", "EX", ARGV[3]) and 1 or 0, place_of(reservation)}
