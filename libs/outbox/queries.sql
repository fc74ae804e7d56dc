-- name: append
-- Under the key's lock, so that id order is commit order per key. Ids come back in the order given.
-- Long columns travel in binary: escaping them as text costs milliseconds of Python.
insert into outbox (bucket, topic, key, event_id, type, headers, payload, created_at)
select e.bucket, e.topic, e.key, e.event_id, e.type, e.headers::jsonb, e.payload, turnwire.clock()
  from unnest(%(buckets)s::smallint[], %(topics)s::text[], %(keys)s::text[], %(event_ids)s::uuid[],
              %(types)s::text[], %(headers)b::text[], %(payloads)b::bytea[])
       with ordinality as e (bucket, topic, key, event_id, type, headers, payload, place)
 order by e.place
returning id;

-- name: delete
delete from outbox o using unnest(%(ids)s::bigint[]) as done (id) where o.id = done.id;

-- name: try_lock
select b.bucket
  from unnest(%(buckets)s::int[]) as b (bucket)
 where pg_try_advisory_lock(hashtext(%(lock_name)s), b.bucket);

-- name: pending
-- Only buckets whose lock this relay holds, and only what is older than the hand-over's own time.
select waiting.id, waiting.bucket, waiting.topic, waiting.key, waiting.event_id, waiting.type,
       waiting.headers, waiting.payload
  from unnest(%(own)s::smallint[]) as mine (bucket)
 cross join lateral (
   select * from outbox o
    where o.bucket = mine.bucket
      and o.created_at < turnwire.clock() - make_interval(secs => %(older_than_s)s)
    order by o.id limit %(limit)s
 ) as waiting
 order by waiting.id;

-- name: status
select count(*) as pending,
       coalesce(extract(epoch from turnwire.clock() - min(created_at)), 0)::float8 as oldest_s
  from outbox;

-- name: bury
with dead as (
  delete from outbox where id = %(id)s
  returning id, topic, key, event_id, type, headers, payload
)
insert into outbox_dead (id, topic, key, event_id, type, headers, payload, error, at)
select id, topic, key, event_id, type, headers, payload, %(error)s, turnwire.clock() from dead;

-- name: occupied
select b.bucket
  from unnest(%(buckets)s::smallint[]) as b (bucket)
 where exists (select from outbox o where o.bucket = b.bucket);
