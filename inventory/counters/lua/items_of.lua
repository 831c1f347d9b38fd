-- Shared code: the text of this file is put before that of every other script of stock.

-- Return the items of a reservation, each {name of a counter, units, ...}, and the whole reservation; nil if it is
-- unreadable. Redis does not roll back what a failed script has written, so scripts call this before they write.
local function items_of(encoded)
    local readable, reservation = pcall(cjson.decode, encoded)
    if not readable or type(reservation) ~= "table" or type(reservation.items) ~= "table" then
        return nil
    end
    for _, item in ipairs(reservation.items) do
        if type(item) ~= "table" or type(item[1]) ~= "string" or type(item[2]) ~= "number"
            or item[2] % 1 ~= 0 then
            return nil
        end
    end
    return reservation.items, reservation
end
