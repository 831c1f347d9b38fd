-- Return the reserved units of a sku, and how many of them belong to the orders that workers have read.
-- KEYS[1]   the reservations: a hash of order id to reservation
-- KEYS[2]   the units reserved: a hash of counter name to units
-- KEYS[3]   the queue: a stream
-- ARGV[1]   the sku
-- ARGV[2]   the group of workers
-- Returns {units reserved, {order id, units}, ...}. It lists only the orders that a worker has read, because only these
-- may be saved already. They are a few batches, however long the queue is.

local found = {tonumber(redis.call("HGET", KEYS[2], ARGV[1]) or 0)}
local pending = redis.pcall("XPENDING", KEYS[3], ARGV[2])  -- An error if no worker has created the group yet.
if pending.err or pending[1] == 0 then
    return found
end
-- Workers delete finished entries, so every entry up to the last pending one was read and is not finished.
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
