-- Make what is reserved agree with the notes, whose sum it is.
-- KEYS[1]   the notes: a hash of request id to note
-- KEYS[2]   the units reserved: a hash of counter name to units
-- Returns {name, units that were reserved, units that are} for each that was wrong. Nothing is changed while there is a
-- note that cannot be read: nobody knows what it has.

local noted, wrong = {}, {}
for _, said in ipairs(redis.call("HVALS", KEYS[1])) do
    local items = items_of(said)
    if not items then
        return {}
    end
    for _, item in ipairs(items) do
        noted[item[1]] = (noted[item[1]] or 0) + item[2]
    end
end
local reserved = redis.call("HGETALL", KEYS[2])
for at = 1, #reserved, 2 do
    local name, units = reserved[at], tonumber(reserved[at + 1])
    if units ~= (noted[name] or 0) then
        wrong[#wrong + 1] = {name, units or 0, noted[name] or 0}
    end
    noted[name] = nil
end
for name, units in pairs(noted) do
    wrong[#wrong + 1] = {name, 0, units}
end
for _, each in ipairs(wrong) do
    if each[3] == 0 then
        redis.call("HDEL", KEYS[2], each[1])
    else
        redis.call("HSET", KEYS[2], each[1], string.format("%.0f", each[3]))
    end
end
return wrong
