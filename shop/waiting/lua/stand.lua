-- Find a customer's place in the line of a sale. If ARGV[8] is "1", give the customer a place if they have none.
--
-- The number of admitted places is computed from the time and the rate, so no process has to admit customers. A call
-- that does not enter writes only in three cases: the customer's turn begins; the turn has to wait because too many
-- admitted customers have come back at once; or the sale has another opening time or rate than at the last call.
--
-- A turn begins when its customer learns that they are admitted. So customers who were away keep their admission.
-- Each turn takes one token. `rate` tokens arrive per second, and only the tokens of a few seconds are kept. So if
-- customers come back all at once, for example after an outage, their turns also begin at this rate. Customers who stay
-- away take no token.
--
-- KEYS[1]  places: sorted set of customers. A score below 1 is from the draw before the opening. A higher score is the
--          number of an arrival after the opening.
-- KEYS[2]  gate: hash. `base` places were admitted at the time `since` (ms), and `rate` places per second after that.
--          `opens_at` is the opening time to which these values belong (ms). `last` is the number of the last arrival.
--          `tokens` were there at the time `filled` (ms). `late` is the approximate number of admitted customers who
--          wanted to begin and found no token, at the time `late_at` (ms).
-- KEYS[3]  turns: hash of the end of each turn that has begun (ms), by customer.
-- ARGV     1 customer, 2 score in the draw, 3 now (ms), 4 opens_at (ms), 5 when the keys expire (ms), 6 places to admit
--          per second; 0 in a pause, 7 length of a turn (ms), 8 "1" to enter, 9 for how long tokens are kept (ms), 10
--          maximum polls of the room per second
-- Result   {place from 1, or 0 without one; thousandths of places admitted; places given; end of the turn (ms), or 0;
--          approximate number of admitted customers who wait for a token; 1 if this call has given the place, else 0}.
--          Before the opening, the place is 1 for everyone in the room, because the order is not known yet.
local places, gate, turns = KEYS[1], KEYS[2], KEYS[3]
local customer, draw = ARGV[1], ARGV[2]
local now, opens_at = tonumber(ARGV[3]), tonumber(ARGV[4])
local rate, turn = tonumber(ARGV[6]), tonumber(ARGV[7])
local enters = ARGV[8] == '1'
local keep, looks = tonumber(ARGV[9]), tonumber(ARGV[10])

local function write(command, key, ...)
    redis.call(command, key, ...)
    redis.call('PEXPIREAT', key, ARGV[5])
end

local function exact(number)
    return string.format('%.17g', number)
end

local rank = redis.call('ZRANK', places, customer)
if now < opens_at then
    local new = enters and not rank
    if new then
        write('ZADD', places, draw, customer)
    end
    return {(rank or new) and 1 or 0, 0, redis.call('ZCARD', places), 0, 0, new and 1 or 0}
end

local known =
    redis.call('HMGET', gate, 'opens_at', 'base', 'since', 'rate', 'tokens', 'filled', 'late', 'late_at')
local base, since = tonumber(known[2]), tonumber(known[3])
-- A gate that an older version of the shop has written has no tokens yet.
local tokens, filled = tonumber(known[5]) or 0, tonumber(known[6]) or since
local late, late_at = tonumber(known[7]) or 0, tonumber(known[8]) or now
local function refill(by_rate)
    if by_rate > 0 then
        tokens = math.min(by_rate * keep / 1000, tokens + math.max(0, now - filled) / 1000 * by_rate)
    end
    filled = math.max(filled, now)
end
local function save_tokens()
    write('HSET', gate, 'tokens', exact(tokens), 'filled', exact(filled), 'late', exact(late), 'late_at', exact(late_at))
end
local function count_from(places_admitted, moment)
    base, since = places_admitted, moment
    write('HSET', gate, 'opens_at', ARGV[4], 'base', exact(base), 'since', exact(since), 'rate', ARGV[6])
end
local function admitted(by_rate)
    return base + math.max(0, now - since) / 1000 * (by_rate or rate)
end
if known[1] ~= ARGV[4] then
    -- The sale has opened, perhaps for the second time after it was postponed. Delete the turns of an earlier opening.
    redis.call('UNLINK', turns)
    tokens, filled, late, late_at = 0, opens_at, 0, now
    count_from(0, opens_at)
    save_tokens()
elseif known[4] ~= ARGV[6] then
    refill(tonumber(known[4]))
    count_from(admitted(tonumber(known[4])), math.max(now, since))
    save_tokens()
end
refill(rate)
-- A late customer calls again after about `keep` ms, and is then counted again. So let the old count decay over `keep`.
late, late_at = late * math.exp(math.min(0, late_at - now) / keep), math.max(late_at, now)

local ends = rank and tonumber(redis.call('HGET', turns, customer))
if enters and ends and ends <= now then
    -- Keep the used place in the line under another name, so that the other places do not change.
    local score = redis.call('ZSCORE', places, customer)
    redis.call('ZREM', places, customer)
    write('ZADD', places, score, customer .. '/' .. exact(ends))
    redis.call('HDEL', turns, customer)
    rank, ends = false, nil
end
local new = enters and not rank
if new then
    local given = redis.call('ZCARD', places)
    -- Keep unused admissions of only one second. Otherwise a crowd that comes to a quiet room would be admitted at
    -- once.
    if admitted() > given + rate then
        count_from(given + rate, math.max(now, since))
    end
    write('ZADD', places, redis.call('HINCRBY', gate, 'last', 1), customer)
    redis.call('PEXPIREAT', gate, ARGV[5])
    rank = redis.call('ZRANK', places, customer)
end
if rate > 0 and rank and not ends and rank + 1 <= admitted() then
    if tokens > 0.999 then -- Sums of fractions may be a little less than 1.
        tokens = tokens - 1
        ends = now + turn
        write('HSET', turns, customer, exact(ends))
    else
        -- In a crowd, customers poll less often than every `keep` ms, so each poll stands for more than one late
        -- customer. There cannot be more late customers than admitted places without a turn.
        local unused = math.min(math.floor(admitted()), redis.call('ZCARD', places)) - redis.call('HLEN', turns)
        late = math.min(late + math.max(1, late / looks * 1000 / keep), math.max(1, unused))
        -- Admit no further places for `keep` ms, so that late customers, who are before them in the line, can begin.
        -- Otherwise both would compete for the tokens, and chance would decide.
        count_from(admitted(), math.max(since, now + keep))
    end
    save_tokens()
end
return {
    rank and rank + 1 or 0, math.floor(admitted() * 1000), redis.call('ZCARD', places), ends or 0, math.ceil(late - 0.5),
    new and 1 or 0
}
