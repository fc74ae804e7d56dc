-- name: beat
insert into instances as i (instance_id, version, place, checks, lag, started_at, beat_at)
values (%(instance_id)s, %(version)s, %(place)s, %(checks)s::jsonb, %(lag)s::jsonb, turnwire.clock(),
        turnwire.clock())
on conflict (instance_id) do update
   set checks = excluded.checks, lag = excluded.lag, beat_at = excluded.beat_at;

-- name: forget
-- Who died without a word is shown for a while, as what it is.
delete from instances where beat_at < turnwire.clock() - make_interval(secs => %(keep_s)s);

-- name: leave
delete from instances where instance_id = %(instance_id)s;
