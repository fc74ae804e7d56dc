-- Counts the processes that watch a turn and were heard of lately.
-- KEYS[1] the watchers. Returns -1 if the turn was never watched as far as Redis remembers.
local now = redis.call('TIME')[1]
return redis.call('ZCOUNT', KEYS[1], '(' .. now, '+inf') - 1
