-- Forget workers that have nothing left to do: the one that says so, and those that died after their last order.
-- KEYS[1]   the queue: a stream
-- ARGV[1]   the group of workers
-- ARGV[2]   the worker that leaves
-- ARGV[3]   milliseconds without a sign after which another one is believed to be dead
-- Returns nothing. A worker that was not dead after all is known again as soon as it reads.

-- Deleted with something left to do, it would take that along: nobody would be told of those entries again.
for _, said in ipairs(redis.call("XINFO", "CONSUMERS", KEYS[1], ARGV[1])) do
    local worker = {}
    for at = 1, #said, 2 do
        worker[said[at]] = said[at + 1]
    end
    if worker.pending == 0 and (worker.name == ARGV[2] or worker.idle >= tonumber(ARGV[3])) then
        redis.call("XGROUP", "DELCONSUMER", KEYS[1], ARGV[1], worker.name)
    end
end
