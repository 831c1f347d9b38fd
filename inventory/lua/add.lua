-- Add units to the counters that exist.
-- KEYS[i]  a counter
-- ARGV[i]  units to add to it
-- Returns how many counters were changed.

local changed = 0
for i = 1, #KEYS do
    if redis.call("EXISTS", KEYS[i]) == 1 then
        redis.call("INCRBY", KEYS[i], ARGV[i])
        changed = changed + 1
    end
end
return changed
