-- Spread the units of a sku evenly over the counters of its segments.
-- KEYS[1]   how many segments there are
-- KEYS[2]   the units reserved: a hash of counter name to units
-- KEYS[3]   the notes: a hash of request id to note
-- KEYS[4..] the counters, of the segments that there are and of those that there shall be
-- ARGV[1]   how many segments the caller knows of; 0: there are none, and shall be some
-- ARGV[2]   over how many to spread; those beyond are left with nothing, and stay: units may come back to them
-- ARGV[3]   units on hand, to make the law hold again (see load.lua); "" to spread what the counters have
-- ARGV[4]   units that the first counter shall have beyond its share
-- ARGV[5]   what the names of the sku's counters begin with
-- ARGV[6..] ids of requests that are noted, and committed already: their units are not on hand any more
-- Returns {what the counters had, what they have}; false, with nothing changed, when there are more segments or none.
-- Nothing is changed either when they are spread as they are, and have less than ARGV[4].

local there_are, known = tonumber(redis.call("GET", KEYS[1]) or 0), tonumber(ARGV[1])
if there_are > known or (there_are == 0 and known > 0) then
    return false
end
local function mine(name)
    return string.sub(name, 1, #ARGV[5]) == ARGV[5]
end
local before, over, first = 0, tonumber(ARGV[2]), tonumber(ARGV[4])
for at = 4, #KEYS do
    before = before + tonumber(redis.call("GET", KEYS[at]) or 0)
end
local units = before
if ARGV[3] ~= "" then
    units = tonumber(ARGV[3])
    local reserved = redis.call("HGETALL", KEYS[2])
    for at = 1, #reserved, 2 do
        units = units - (mine(reserved[at]) and reserved[at + 1] or 0)
    end
    for at = 6, #ARGV do
        local noted = redis.call("HGET", KEYS[3], ARGV[at])
        for _, item in ipairs(items_of(noted) or {}) do
            units = units + (mine(item[1]) and item[2] or 0)
        end
    end
end
if ARGV[3] ~= "" or units >= first then
    local rest = units - first
    for at = 4, #KEYS do
        local number = at - 4
        local share = number < over and math.floor(rest / over) + (number < rest % over and 1 or 0) or 0
        redis.call("SET", KEYS[at], string.format("%.0f", share + (number == 0 and first or 0)))
    end
    redis.call("SET", KEYS[1], math.max(there_are, over, #KEYS - 3))
end
return {string.format("%.0f", before), string.format("%.0f", units)}
