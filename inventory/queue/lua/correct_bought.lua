-- Set the units that a customer has bought of a sku, unless they have changed since they were read.
-- KEYS[1]   the units bought of a sku: a hash of "sale:customer" to units
-- ARGV[1]   "sale:customer"
-- ARGV[2]   units that were read
-- ARGV[3]   units to set
-- Returns 1 when the units were set, 0 when they had changed.

if redis.call("HGET", KEYS[1], ARGV[1]) ~= ARGV[2] then
    return 0
end
redis.call("HSET", KEYS[1], ARGV[1], ARGV[3])
return 1
