-- Set the units reserved to the sum of the reservations.
-- KEYS[1]   the reservations: a hash of order id to reservation
-- KEYS[2]   the units reserved: a hash of counter name to units
-- ARGV[1]   the maximum number of reservations; if there are more, nothing is changed
-- Returns {counter name, units before, units after} for each value that was wrong. If a reservation cannot be read,
-- nothing is changed either, because its units are unknown.

if redis.call("HLEN", KEYS[1]) > tonumber(ARGV[1]) then
    return {}
end
local sums, wrong = {}, {}
for _, encoded in ipairs(redis.call("HVALS", KEYS[1])) do
    local items = items_of(encoded)
    if not items then
        return {}
    end
    for _, item in ipairs(items) do
        sums[item[1]] = (sums[item[1]] or 0) + item[2]
    end
end
local reserved = redis.call("HGETALL", KEYS[2])
for index = 1, #reserved, 2 do
    local name, units = reserved[index], tonumber(reserved[index + 1])
    if units ~= (sums[name] or 0) then
        wrong[#wrong + 1] = {name, units or 0, sums[name] or 0}
    end
    sums[name] = nil
end
for name, units in pairs(sums) do
    wrong[#wrong + 1] = {name, 0, units}
end
for _, correction in ipairs(wrong) do
    if correction[3] == 0 then
        redis.call("HDEL", KEYS[2], correction[1])
    else
        redis.call("HSET", KEYS[2], correction[1], string.format("%.0f", correction[3]))
    end
end
return wrong
