-- Lets the service count the turns that operators ended: no process of it sees such an end happen.
--
-- Owned by ingestion_maint, as operators act on any tenant.
set local role ingestion_owner;
set local search_path = ingestion, turnwire, pg_catalog;

-- What stands there already was ended before anybody counted.
alter table operator_actions add column is_counted boolean not null default true;
alter table operator_actions alter column is_counted set default false;
comment on column operator_actions.is_counted is
  'Of the end of a turn: whether some process has it in its metrics.';
create index operator_actions_uncounted on operator_actions (at)
  where action = 'turn.ended' and not is_counted;
grant update (is_counted) on operator_actions to ingestion_maint;

-- Turns that an operator ended and that nobody has counted, oldest first.
create function op_uncounted_ends(max_rows int) returns table (turn_id uuid)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  select a.turn_id from operator_actions a
   where a.action = 'turn.ended' and not a.is_counted
   order by a.at limit $1
$$;

-- Hands each of them to one caller, to be counted after the commit: state, reason, and the seconds
-- from acceptance to end; null where the turn has been purged since.
create function op_count_ends(max_rows int)
  returns table (status text, reason text, lasted_s double precision)
language sql volatile security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  with due as (
    select a.tenant_id, a.action, a.turn_id, a.at from operator_actions a
     where a.action = 'turn.ended' and not a.is_counted
     order by a.at limit $1
       for update skip locked
  ), counted as (
    update operator_actions a set is_counted = true from due
     where a.tenant_id = due.tenant_id and a.action = due.action and a.turn_id = due.turn_id
       and a.at = due.at
    returning a.tenant_id, a.turn_id, a.details, a.at
  )
  select c.details ->> 'status', c.details ->> 'reason',
         extract(epoch from c.at - t.created_at)::float8
    from counted c
    left join lateral (
      select x.created_at from turns x where x.tenant_id = c.tenant_id and x.id = c.turn_id limit 1
    ) t on true
$$;
reset role;
set local search_path = ingestion, turnwire, pg_catalog;

alter function op_uncounted_ends(int) owner to ingestion_maint;
alter function op_count_ends(int) owner to ingestion_maint;
revoke all on function op_uncounted_ends(int), op_count_ends(int) from public;
grant execute on function op_uncounted_ends(int), op_count_ends(int) to turnwire_ingestion;
