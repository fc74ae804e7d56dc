-- name: seen
select i.event_id
  from unnest(%(event_ids)s::uuid[]) as asked (event_id)
  join inbox i on i.consumer = %(consumer)s and i.event_id = asked.event_id;

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
