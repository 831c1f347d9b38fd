-- Correct how many units of a sku a customer has, unless that has changed meanwhile.
-- KEYS[1]   what was bought of a sku: a hash of "sale:customer" to units
-- ARGV[1]   "sale:customer"
-- ARGV[2]   units that were there
-- ARGV[3]   units that shall be there
-- Returns 1 when they are there now, 0 when something else was there.

if redis.call("HGET", KEYS[1], ARGV[1]) ~= ARGV[2] then
    return 0
end
redis.call("HSET", KEYS[1], ARGV[1], ARGV[3])
return 1
