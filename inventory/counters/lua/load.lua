-- Make a counter agree with what is on hand in Postgres, less what is reserved.
-- KEYS[1]   the notes: a hash of request id to note
-- KEYS[2]   the units reserved: a hash of sku to units
-- KEYS[3]   the counter
-- ARGV[1]   the sku
-- ARGV[2]   units on hand; the caller holds the row, so no order of the sku is committed meanwhile
-- ARGV[3]   "make" to make a counter that is not there, "mend" to leave it alone then
-- ARGV[4..] ids of requests that are noted, and committed already: their units are not on hand any more
-- Returns {what it was, what it is}; false for a counter that is not there. One that is no number was 0.

local before = redis.call("GET", KEYS[3])
if not before and ARGV[3] == "mend" then
    return {false, false}
end
local reserved = tonumber(redis.call("HGET", KEYS[2], ARGV[1]) or 0)
for at = 4, #ARGV do
    local noted = redis.call("HGET", KEYS[1], ARGV[at])
    for _, item in ipairs(items_of(noted) or {}) do
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
