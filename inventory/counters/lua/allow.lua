-- Count units that a customer has given back as not bought any more, where they are counted at all.
-- KEYS[1]   what was bought of a sku: a hash of "sale:customer" to units
-- ARGV[1]   "sale:customer"
-- ARGV[2]   units; negative for those that he has again
-- Returns nothing.

if redis.call("HEXISTS", KEYS[1], ARGV[1]) == 1 then
    redis.call("HINCRBY", KEYS[1], ARGV[1], -ARGV[2])
end
