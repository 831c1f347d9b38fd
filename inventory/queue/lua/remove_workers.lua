-- Remove the calling worker and all dead workers from the group, except those that still have entries to finish.
-- KEYS[1]   the queue: a stream
-- ARGV[1]   the group of workers
-- ARGV[2]   the calling worker
-- ARGV[3]   milliseconds without a command after which another worker counts as dead
-- Returns nothing. A worker that was removed while alive is added again when it next reads.

-- Keep workers with pending entries: removing a worker would hide its entries from all other workers.
for _, fields in ipairs(redis.call("XINFO", "CONSUMERS", KEYS[1], ARGV[1])) do
    local worker = {}
    for index = 1, #fields, 2 do
        worker[fields[index]] = fields[index + 1]
    end
    if worker.pending == 0 and (worker.name == ARGV[2] or worker.idle >= tonumber(ARGV[3])) then
        redis.call("XGROUP", "DELCONSUMER", KEYS[1], ARGV[1], worker.name)
    end
end
