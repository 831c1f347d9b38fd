-- Take every line of a draft, or none, and note it as reserved.
-- KEYS[1]   the notes: a hash of draft id to lines
-- KEYS[2..] the counter of each line's sku
-- ARGV[1]   the draft's id
-- ARGV[2]   the note: JSON, [[sku, quantity], ...]
-- ARGV[3..] the quantity of each line
-- Returns {"taken", 1, 0}, {"sold out", line, left} or {"not loaded", line, 0}.

-- A client that lost the answer may send the script again: the note says that the draft has its units.
if redis.call("HEXISTS", KEYS[1], ARGV[1]) == 1 then
    return {"taken", 1, 0}
end
for line = 1, #KEYS - 1 do
    local left = redis.call("GET", KEYS[line + 1])
    if not left then
        return {"not loaded", line, 0}
    end
    if tonumber(left) < tonumber(ARGV[line + 2]) then
        return {"sold out", line, tonumber(left)}
    end
end
for line = 1, #KEYS - 1 do
    redis.call("DECRBY", KEYS[line + 1], ARGV[line + 2])
end
redis.call("HSET", KEYS[1], ARGV[1], ARGV[2])
return {"taken", 1, 0}
