-- Appends the entries of one turn and rings once for each accepted one.
-- KEYS[1] the stream, KEYS[2] the channel of its bells (a name that is only published to)
-- ARGV[1] seconds to live, ARGV[2] about how many entries to keep, then id, event, data per entry
-- Returns {accepted, last id or '', 1 if the stream is new}.
local created = redis.call('EXISTS', KEYS[1]) == 0
local accepted = 0
local refused = false
local last = ''
for i = 3, #ARGV, 3 do
  local id, event, data = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local added =
    redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], id, 'event', event, 'data', data)
  if type(added) == 'table' and added.err then
    if not string.find(added.err, 'equal or smaller', 1, true) then
      return added
    end
    refused = true
  else
    accepted = accepted + 1
    last = id
    if string.sub(id, -2) ~= '-0' then
      redis.call('PUBLISH', KEYS[2], id .. ' ' .. event .. ' ' .. data)
    end
  end
end
if accepted > 0 then
  redis.call('EXPIRE', KEYS[1], ARGV[1])
end
if refused and accepted == 0 then
  last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1][1]
end
return {accepted, last, created and 1 or 0}
