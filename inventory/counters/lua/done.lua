-- Take a request off the queue: its order is committed, or it was refused and its units go back.
-- KEYS[1]   the notes: a hash of request id to note
-- KEYS[2]   the units reserved: a hash of sku to units
-- KEYS[3]   the queue: a stream
-- KEYS[4]   the customer's idempotency key: the id of the request that has it
-- KEYS[5]   the place of the last request that was taken off
-- KEYS[6]   the outcome, for those who ask by the request's id
-- KEYS[7..] for each item the counter of its sku, then what was bought of it: a hash of "sale:customer" to units
-- ARGV[1]   the request's id
-- ARGV[2]   the entry in the queue
-- ARGV[3]   the group of workers
-- ARGV[4]   "sold" or "back"
-- ARGV[5]   what has become of the request, where that is not an order of its own: the id of the order that stands for it,
--           or JSON, {"reason": why it is rejected, ...}, and then it keeps its key; else empty
-- ARGV[6]   seconds for which that is remembered
-- Returns 1 when the request was noted, 0 when somebody has taken it off before, and -1 when it was on the queue without
-- a note, or with one that cannot be read, which stays: then only the entry is ended.

redis.call("XACK", KEYS[3], ARGV[3], ARGV[2])
local was_there = redis.call("XDEL", KEYS[3], ARGV[2])
local noted = redis.call("HGET", KEYS[1], ARGV[1])
if was_there == 0 and not noted then
    return 0
end
if ARGV[4] == "back" and string.sub(ARGV[5], 1, 1) ~= "{" then
    redis.call("DEL", KEYS[4])  -- another order has it, or none: Postgres alone knows
end
if ARGV[5] ~= "" then
    redis.call("SET", KEYS[6], ARGV[5], "EX", ARGV[6])
end
local items, note = items_of(noted)
if not items then
    return -was_there
end
redis.call("HDEL", KEYS[1], ARGV[1])
for at, item in ipairs(items) do
    if redis.call("HINCRBY", KEYS[2], item[1], -item[2]) == 0 then
        redis.call("HDEL", KEYS[2], item[1])
    end
    local counter, bought = KEYS[5 + 2 * at], KEYS[6 + 2 * at]  -- none where the entry has fewer items than its note
    if ARGV[4] == "back" and counter then
        if redis.call("EXISTS", counter) == 1 then
            redis.call("INCRBY", counter, item[2])
        end
        if type(note.buyer) == "string" and redis.call("HEXISTS", bought, note.buyer) == 1 then
            redis.call("HINCRBY", bought, note.buyer, -item[2])
        end
    end
end
if type(note.place) == "number" and tonumber(redis.call("GET", KEYS[5]) or 0) < note.place then
    redis.call("SET", KEYS[5], string.format("%.0f", note.place))
end
return 1
