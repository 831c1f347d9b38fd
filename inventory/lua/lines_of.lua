-- What every script begins with.

-- The lines of a note, each {name of a counter, units, ...}, and the note; nil for one that cannot be read. Scripts do not
-- roll back what they have written when they fail, so it is looked at before.
local function lines_of(noted)
    local legible, note = pcall(cjson.decode, noted)
    if not legible or type(note) ~= "table" or type(note.lines) ~= "table" then
        return nil
    end
    for _, line in ipairs(note.lines) do
        if type(line) ~= "table" or type(line[1]) ~= "string" or type(line[2]) ~= "number"
            or line[2] % 1 ~= 0 then
            return nil
        end
    end
    return note.lines, note
end
