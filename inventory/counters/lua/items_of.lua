-- What every script begins with.

-- The items of a note, each {name of a counter, units, ...}, and the note; nil for one that cannot be read. Scripts do not
-- roll back what they have written when they fail, so it is looked at before.
local function items_of(noted)
    local legible, note = pcall(cjson.decode, noted)
    if not legible or type(note) ~= "table" or type(note.items) ~= "table" then
        return nil
    end
    for _, item in ipairs(note.items) do
        if type(item) ~= "table" or type(item[1]) ~= "string" or type(item[2]) ~= "number"
            or item[2] % 1 ~= 0 then
            return nil
        end
    end
    return note.items, note
end
