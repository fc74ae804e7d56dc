-- name: park
-- A crash before the offset moved brings the same record again; its id is the same then.
insert into dead_letters (id, tenant_id, consumer, topic, partition, "offset", key, headers, value,
                          event_id, event_type, reason, error, attempts, at, mirrored)
select d.id, d.tenant_id, %(consumer)s, d.topic, d.partition, d."offset", d.key, d.headers, d.value,
       d.event_id, d.event_type, d.reason, d.error, d.attempts, turnwire.clock(), d.mirrored
  from unnest(%(ids)s::uuid[], %(tenant_ids)s::uuid[], %(topics)s::text[], %(partitions)s::int[],
              %(offsets)s::bigint[], %(keys)s::bytea[], %(headers)s::jsonb[], %(values)s::bytea[],
              %(event_ids)s::uuid[], %(event_types)s::text[], %(reasons)s::text[],
              %(errors)s::text[], %(attempts)s::int[], %(mirrored)s::bool[])
       as d (id, tenant_id, topic, partition, "offset", key, headers, value, event_id, event_type,
             reason, error, attempts, mirrored)
    on conflict (id) do nothing;

-- name: purge
with old as (
  select id from dead_letters
   where at < turnwire.clock() - make_interval(secs => %(keep_s)s)
   order by at limit %(max_rows)s
), gone as (
  delete from dead_letters d using old where d.id = old.id returning 1
)
select count(*) as purged from gone;

-- name: take_redrives
-- Dead letters that an operator wants handled again, each for one process at a time.
select id, topic, partition, "offset", key, headers, value
  from op_take_redrives(%(consumer)s, %(hold_s)s::double precision, %(max_rows)s::int);

-- name: close_redrive
select op_close_redrive(%(id)s, %(reason)s::text, %(error)s::text);
