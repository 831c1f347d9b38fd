-- End a reservation: its units were sold, or go back.
-- KEYS[1]   the notes: a hash of request id to note
-- KEYS[2]   the units reserved: a hash of sku to units
-- KEYS[3..] the counter of each item's sku
-- ARGV[1]   the request's id
-- ARGV[2]   "sold" or "back"
-- Returns 1 when there was a note, 0 when it had ended before or cannot be read; then it stays.

local noted = redis.call("HGET", KEYS[1], ARGV[1])
if not noted then
    return 0
end
local items = items_of(noted)
if not items then
    return 0
end
redis.call("HDEL", KEYS[1], ARGV[1])
for at, item in ipairs(items) do
    if redis.call("HINCRBY", KEYS[2], item[1], -item[2]) == 0 then
        redis.call("HDEL", KEYS[2], item[1])
    end
    -- A counter that is gone belongs to a sale that is over: making it anew would sell what nobody offers.
    if ARGV[2] == "back" and redis.call("EXISTS", KEYS[at + 2]) == 1 then
        redis.call("INCRBY", KEYS[at + 2], item[2])
    end
end
return 1
