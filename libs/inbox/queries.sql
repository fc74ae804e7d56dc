-- name: seen
-- One look-up for each event. A plain join, planned while the table was new, would read all events
-- of the consumer until the next statistics.
select i.event_id
  from unnest(%(event_ids)s::uuid[]) as asked (event_id)
 cross join lateral (
   select x.event_id from inbox x
    where x.consumer = %(consumer)s and x.event_id = asked.event_id
    limit 1
 ) as i;

-- name: record
insert into inbox (consumer, event_id, at)
select %(consumer)s, done.event_id, turnwire.clock()
  from unnest(%(event_ids)s::uuid[]) as done (event_id);

-- name: purge
with old as (
  select consumer, event_id from inbox
   where at < turnwire.clock() - make_interval(secs => %(keep_s)s)
   order by at limit %(max_rows)s
), gone as (
  delete from inbox i using old where i.consumer = old.consumer and i.event_id = old.event_id returning 1
)
select count(*) as purged from gone;
