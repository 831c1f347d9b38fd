-- Subtract units from those that a customer has bought of a sku, if Redis counts them.
-- KEYS[1]   the units bought of a sku: a hash of "sale:customer" to units
-- ARGV[1]   "sale:customer"
-- ARGV[2]   units that the customer gave back; negative for units that they take again
-- Returns nothing.

if redis.call("HEXISTS", KEYS[1], ARGV[1]) == 1 then
    redis.call("HINCRBY", KEYS[1], ARGV[1], -ARGV[2])
end
