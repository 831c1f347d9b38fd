-- Take every item of a request, or none, note it as reserved, and append it to the queue of orders to be saved.
-- KEYS[1]   the notes: a hash of request id to note
-- KEYS[2]   the units reserved: a hash of sku to units
-- KEYS[3]   the queue: a stream
-- KEYS[4]   the customer's idempotency key: the id of the request that has it
-- KEYS[5]   how many were ever queued
-- KEYS[6]   how many were ever taken off
-- KEYS[7]   the wake-up: there while a worker was told to come
-- KEYS[8..] for each item the counter of its sku, then what was bought of it: a hash of "sale:customer" to units
-- ARGV[1]   the request's id
-- ARGV[2]   the note: JSON, {"items": [[sku, quantity, limit or 0, price], ...], "buyer": "sale:customer",
--           "key": the idempotency key, "hash": of the body, "request": the whole request}, to which time and place are added
-- ARGV[3]   seconds after which a wake-up that nobody came to is forgotten
-- ARGV[4]   seconds for which the idempotency key is remembered
-- Returns {"queued", whether to wake a worker, place in the queue}, {"duplicate", id of the request that has the key, 0},
-- {"over limit", item, units bought before}, {"sold out", item, left} or {"not loaded", item, 0}.

local function place_of(note)
    return math.max(1, note.place - tonumber(redis.call("GET", KEYS[6]) or 0))
end

local note = cjson.decode(ARGV[2])
local existing = redis.call("GET", KEYS[4])
if existing == ARGV[1] then
    -- A client that lost the answer has sent the script again, and a worker may have been faster.
    local noted = redis.call("HGET", KEYS[1], ARGV[1])
    return {"queued", 0, noted and place_of(cjson.decode(noted)) or 1}
end
if existing then
    return {"duplicate", existing, 0}
end
for at, item in ipairs(note.items) do
    local left = redis.call("GET", KEYS[6 + 2 * at])
    if not left then
        return {"not loaded", at, 0}
    end
    if tonumber(left) < item[2] then
        return {"sold out", at, math.max(0, tonumber(left))}
    end
    local bought = tonumber(redis.call("HGET", KEYS[7 + 2 * at], note.buyer) or 0)
    if item[3] > 0 and bought + item[2] > item[3] then
        return {"over limit", at, bought}
    end
end
for at, item in ipairs(note.items) do
    redis.call("DECRBY", KEYS[6 + 2 * at], item[2])
    redis.call("HINCRBY", KEYS[7 + 2 * at], note.buyer, item[2])
    redis.call("HINCRBY", KEYS[2], item[1], item[2])
end
note.at = tonumber(redis.call("TIME")[1])
note.place = redis.call("INCR", KEYS[5])
note.entry = redis.call("XADD", KEYS[3], "*", "id", ARGV[1], "request", note.request)
note.request = nil  -- the queue has it
redis.call("HSET", KEYS[1], ARGV[1], cjson.encode(note))
redis.call("SET", KEYS[4], ARGV[1], "EX", ARGV[4])
return {"queued", redis.call("SET", KEYS[7], 1, "NX", "EX", ARGV[3]) and 1 or 0, place_of(note)}
