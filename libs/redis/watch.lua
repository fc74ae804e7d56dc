-- Notes that a process watches a turn. Scores are the server's time at which a report runs out.
-- KEYS[1] the watchers, ARGV[1] the watcher, ARGV[2] seconds its report lasts, ARGV[3] of the key
local now = tonumber(redis.call('TIME')[1])
-- The empty member never runs out: it tells a turn that nobody watches from one nobody ever did.
redis.call('ZADD', KEYS[1], '+inf', '', now + tonumber(ARGV[2]), ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
