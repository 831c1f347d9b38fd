-- Take every item of a request, or none, and note it as reserved.
-- KEYS[1]   the notes: a hash of request id to note
-- KEYS[2]   the units reserved: a hash of sku to units
-- KEYS[3..] the counter of each item's sku
-- ARGV[1]   the request's id
-- ARGV[2]   the note: JSON, {"items": [[sku, quantity], ...]}, to which the server's time is added
-- Returns {"taken", 1, 0}, {"reserved", item, left}, {"sold out", item, left} or {"not loaded", item, 0}. What is reserved
-- for requests that may still fail counts as left. "Reserved": only with it would there be enough, which is too early to
-- say "sold out".

-- A client that lost the answer may send the script again: the note says that the request has its units.
if redis.call("HEXISTS", KEYS[1], ARGV[1]) == 1 then
    return {"taken", 1, 0}
end
local note = cjson.decode(ARGV[2])
for at, item in ipairs(note.items) do
    local left = redis.call("GET", KEYS[at + 2])
    if not left then
        return {"not loaded", at, 0}
    end
    if tonumber(left) < item[2] then
        local reserved = tonumber(redis.call("HGET", KEYS[2], item[1]) or 0)
        local with = math.max(0, tonumber(left) + reserved)
        return {with < item[2] and "sold out" or "reserved", at, with}
    end
end
for at, item in ipairs(note.items) do
    redis.call("DECRBY", KEYS[at + 2], item[2])
    redis.call("HINCRBY", KEYS[2], item[1], item[2])
end
note.at = tonumber(redis.call("TIME")[1])
redis.call("HSET", KEYS[1], ARGV[1], cjson.encode(note))
return {"taken", 1, 0}
