-- Add the units of a draft that was not saved, if they are still noted as reserved.
-- KEYS[1]   the notes: a hash of draft id to lines
-- KEYS[2..] the counter of each line's sku
-- ARGV[1]   the draft's id
-- ARGV[2..] the quantity of each line
-- Returns 1 when the units went back, 0 when there was no note.

if redis.call("HDEL", KEYS[1], ARGV[1]) == 0 then
    return 0
end
for line = 1, #KEYS - 1 do
    -- A counter that is gone belongs to a sale that is over: making it anew would sell what nobody offers.
    if redis.call("EXISTS", KEYS[line + 1]) == 1 then
        redis.call("INCRBY", KEYS[line + 1], ARGV[line + 1])
    end
end
return 1
