-- Return the reserved units of a sku, and how many of them belong to the orders that workers have read.
-- KEYS[1]   the reservations: a hash of order id to reservation
-- KEYS[2]   the units reserved: a hash of counter name to units
-- KEYS[3]   the queue: a stream
-- ARGV[1]   the sku
-- ARGV[2]   the group of workers
-- Returns {units reserved, {order id, units}, ...}. Only orders that a worker has read may be saved already, and only
-- those are listed: they are a few batches, however long the queue is.

local found = {tonumber(redis.call("HGET", KEYS[2], ARGV[1]) or 0)}
local pending = redis.pcall("XPENDING", KEYS[3], ARGV[2])  -- An error before the first worker has created the group.
if pending.err or pending[1] == 0 then
    return found
end
-- Workers delete what they have finished, so they have read every entry up to the last pending one.
for _, entry in ipairs(redis.call("XRANGE", KEYS[3], "-", pending[3])) do
    local fields = entry[2]
    for index = 1, #fields, 2 do
        local encoded = fields[index] == "id" and redis.call("HGET", KEYS[1], fields[index + 1])
        for _, item in ipairs(encoded and items_of(encoded) or {}) do
            if item[1] == ARGV[1] then
                found[#found + 1] = {fields[index + 1], item[2]}
            end
        end
    end
end
return found
