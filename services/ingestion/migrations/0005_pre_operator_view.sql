-- What operators see of turns, whoever they belong to: ids, states, counts and times, never a text,
-- a title or an option. And the reaping of one turn.
set local role ingestion_owner;
set local search_path = ingestion, turnwire, pg_catalog;
select turnwire.create_operator_view('ingestion');
-- By hash, so that no look-up of a key inside its conversation can take this index for its own.
create index turns_of_key on turns (hashtext(key));
create index turns_of_request on turns (request_id);
grant select on operator_actions, request_outcomes to ingestion_maint;
reset role;
set local search_path = ingestion, turnwire, pg_catalog;

-- ($1 newest)
-- Open turns by state, all of them; ended ones by state and reason among the newest accepted requests
-- (kept for a day). Ages of open turns count from their acceptance, of ended ones from their end.
create function op_turn_counts(newest int)
  returns table (is_open boolean, status text, reason text, turns bigint, oldest_s double precision,
                 newest_s double precision)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  select true, case when o.deadline_at is null then 'queued' else o.state end, null::text, count(*),
         extract(epoch from turnwire.clock() - min(t.created_at))::double precision,
         extract(epoch from turnwire.clock() - max(t.created_at))::double precision
    from open_turns o
   cross join lateral (
     select x.created_at from turns x where x.tenant_id = o.tenant_id and x.id = o.turn_id limit 1
   ) t
   group by 2
  union all
  select false, t.status, t.reason, count(*),
         extract(epoch from turnwire.clock() - min(t.ended_at))::double precision,
         extract(epoch from turnwire.clock() - max(t.ended_at))::double precision
    from (
      select distinct n.tenant_id, n.turn_id from (
        select r.tenant_id, r.turn_id from request_outcomes r
         where r.outcome = 'accepted' and r.turn_id is not null
         order by r.decided_at desc limit $1) n
    ) o
   cross join lateral (
     select x.status, x.reason, x.ended_at from turns x
      where x.tenant_id = o.tenant_id and x.id = o.turn_id and x.ended_at is not null limit 1
   ) t
   group by 2, 3
   order by 1 desc, 2, 3
$$;

-- ($1 of_status, $2 of_reason, $3 newest, $4 max_rows)
-- Open turns, the oldest first, or ended ones of the last day, the newest first.
create function op_turn_list(of_status text, of_reason text, newest int, max_rows int)
  returns table (turn_id uuid, tenant_id uuid, conversation_id uuid, kind text, status text,
                 reason text, place int, created_at timestamptz, started_at timestamptz,
                 deadline_at timestamptz, ended_at timestamptz)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  (select t.id, t.tenant_id, t.conversation_id, t.kind,
          case when o.deadline_at is null then 'queued' else o.state end, null::text, o.position,
          t.created_at, t.started_at, o.deadline_at, null::timestamptz
     from open_turns o
    cross join lateral (
      select x.* from turns x where x.tenant_id = o.tenant_id and x.id = o.turn_id limit 1
    ) t
    where $2 is null
      and ($1 is null or $1 = 'open'
           or $1 = case when o.deadline_at is null then 'queued' else o.state end)
    order by t.created_at limit $4)
  union all
  (select t.id, t.tenant_id, t.conversation_id, t.kind, t.status, t.reason, 0, t.created_at,
          t.started_at, t.deadline_at, t.ended_at
     from (
       select distinct n.tenant_id, n.turn_id from (
         select r.tenant_id, r.turn_id from request_outcomes r
          where r.outcome = 'accepted' and r.turn_id is not null
            and $1 is distinct from 'open'
          order by r.decided_at desc limit $3) n
     ) o
    cross join lateral (
      select x.* from turns x
       where x.tenant_id = o.tenant_id and x.id = o.turn_id and x.ended_at is not null
         and ($1 is null or x.status = $1) and ($2 is null or x.reason = $2) limit 1
    ) t
    order by t.ended_at desc limit $4)
  limit $4
$$;

-- ($1 id, $2 key, $3 max_rows)
-- Turns that an id or an idempotency key means; newest first.
create function op_find_turns(wanted uuid, wanted_key text, max_rows int)
  returns table (found_by text, turn_id uuid, tenant_id uuid, conversation_id uuid, kind text,
                 status text, reason text, place int, created_at timestamptz,
                 started_at timestamptz, deadline_at timestamptz, ended_at timestamptz)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  with found as (
    (select 'turn' as by, t.tenant_id, t.id from turns t where t.id = $1)
    union all
    (select 'conversation', t.tenant_id, t.id from turns t
      where t.conversation_id = $1 order by t.created_at desc limit $3)
    union all
    (select 'request', t.tenant_id, t.id from turns t where t.request_id = $1 limit $3)
    union all
    (select 'request', r.tenant_id, r.turn_id from request_outcomes r
      where r.request_id = $1 and r.turn_id is not null
        and not exists (select from turns t where t.request_id = $1))
    union all
    (select 'key', t.tenant_id, t.id from turns t
      where hashtext(t.key) = hashtext($2) and t.key = $2 order by t.created_at desc limit $3)
  )
  select f.by, t.id, t.tenant_id, t.conversation_id, t.kind, t.status, t.reason,
         coalesce(o.position, 0), t.created_at, t.started_at, t.deadline_at, t.ended_at
    from found f
   cross join lateral (
     select x.* from turns x where x.tenant_id = f.tenant_id and x.id = f.id limit 1
   ) t
    left join open_turns o on o.turn_id = t.id
   order by t.created_at desc, t.id limit $3
$$;

-- ($1 request)
-- How a request was decided, with the slug of its refusal alone; kept for a day.
create function op_request(request uuid)
  returns table (tenant_id uuid, outcome text, code text, conversation_id uuid, turn_id uuid,
                 decided_at timestamptz)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog as $$
  select r.tenant_id, r.outcome, r.problem ->> 'code', r.conversation_id, r.turn_id, r.decided_at
    from request_outcomes r where r.request_id = $1
$$;

-- ($1 turn)
create function op_turn(turn uuid)
  returns table (turn_id uuid, tenant_id uuid, conversation_id uuid, branch_id uuid,
                 principal_id uuid, parent_turn_id uuid, kind text, request_id uuid, key text,
                 policy text, model text, status text, reason text, seq bigint, attempts int,
                 length bigint, usage jsonb, cancel_reason text, traceparent text,
                 user_message_id uuid, assistant_message_id uuid, queued_at_position int,
                 place int, is_open boolean, is_overdue boolean, wait_until timestamptz,
                 cancel_at timestamptz, progressed_at timestamptz, created_at timestamptz,
                 started_at timestamptz, deadline_at timestamptz, ended_at timestamptz)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  select t.id, t.tenant_id, t.conversation_id, t.branch_id, t.principal_id, t.parent_turn_id, t.kind,
         t.request_id, t.key, t.policy, t.model, t.status, t.reason, t.seq, t.attempts, t.length,
         t.usage, t.cancel_reason, t.traceparent, t.user_message_id, t.assistant_message_id,
         t.queued_at_position, o.position, o.turn_id is not null,
         coalesce(o.deadline_at < turnwire.clock(), false), o.wait_until, o.cancel_at,
         o.progressed_at, t.created_at, t.started_at, t.deadline_at, t.ended_at
    from turns t left join open_turns o on o.turn_id = t.id
   where t.id = $1
$$;

-- ($1 turn)
create function op_turn_transitions(turn uuid)
  returns table (status text, reason text, cause_id uuid, at timestamptz)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  select r.status, r.reason, r.cause_id, r.at
    from turns t
   cross join lateral (
     select x.* from transitions x where x.tenant_id = t.tenant_id and x.turn_id = t.id limit 100
   ) r
   where t.id = $1 order by r.at
$$;

-- ($1 target)
-- What operators did to a turn or a conversation.
create function op_acts_on(target uuid)
  returns table (action text, target_id uuid, actor text, details jsonb, at timestamptz)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog as $$
  select a.action, a.turn_id, a.actor, a.details, a.at
    from operator_actions a where a.turn_id = $1 order by a.at limit 100
$$;

-- ($1 max_rows)
create function op_turn_acts(max_rows int)
  returns table (action text, target_id uuid, actor text, details jsonb, at timestamptz)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog as $$
  select a.action, a.turn_id, a.actor, a.details, a.at
    from operator_actions a order by a.at desc limit $1
$$;

-- ($1 after_tenant, $2 after_turn, $3 max_rows)
-- All turns in the order of their key, for whoever rebuilds or compares something.
create function op_turn_page(after_tenant uuid, after_turn uuid, max_rows int)
  returns table (tenant_id uuid, turn_id uuid, conversation_id uuid, kind text, policy text,
                 model text, status text, reason text, length bigint, usage jsonb,
                 created_at timestamptz, started_at timestamptz, ended_at timestamptz,
                 is_open boolean)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  select t.tenant_id, t.id, t.conversation_id, t.kind, t.policy, t.model, t.status, t.reason,
         t.length, t.usage, t.created_at, t.started_at, t.ended_at, o.turn_id is not null
    from (
      select x.* from turns x where (x.tenant_id, x.id) > ($1, $2)
       order by x.tenant_id, x.id limit $3
    ) t left join open_turns o on o.turn_id = t.id
   order by t.tenant_id, t.id
$$;

-- ($1 turn_ids)
create function op_turn_states(turn_ids uuid[])
  returns table (turn_id uuid, status text, ended_at timestamptz)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  select t.id, t.status, t.ended_at
    from unnest($1) as wanted (id)
   cross join lateral (select x.* from turns x where x.id = wanted.id limit 1) t
$$;

-- Lets the reaper end a running turn at its next look, within a second or two, with what was shown of
-- its answer. Returns the state it is in, or null where the turn is unknown or has ended.
create function op_reap_turn(turn uuid, actor text) returns text
language plpgsql volatile security definer set search_path = ingestion, turnwire, pg_catalog as $$
#variable_conflict use_column
declare
  found_turn open_turns;
begin
  if actor = '' then
    raise exception 'a reaping names who wants it' using errcode = 'TW002';
  end if;
  select * into found_turn from open_turns o where o.turn_id = turn;
  if not found then
    return null;
  end if;
  perform from conversations c
    where c.tenant_id = found_turn.tenant_id and c.id = found_turn.conversation_id for update;
  select * into found_turn from open_turns o where o.turn_id = turn for update;
  if not found then
    return null;
  end if;
  if found_turn.deadline_at is null then
    raise exception 'it has not started, so nothing was shown that could be kept; end it instead'
      using errcode = 'TW002';
  end if;
  update open_turns o set deadline_at = turnwire.clock() - interval '1 day' where o.turn_id = turn;
  insert into operator_actions (tenant_id, action, turn_id, actor, details, at)
  values (found_turn.tenant_id, 'turn.reaped', turn, actor,
          jsonb_build_object('state', found_turn.state, 'deadline_at', found_turn.deadline_at),
          turnwire.clock());
  return found_turn.state;
end
$$;

alter function op_turn_counts(int) owner to ingestion_maint;
alter function op_turn_list(text, text, int, int) owner to ingestion_maint;
alter function op_find_turns(uuid, text, int) owner to ingestion_maint;
alter function op_request(uuid) owner to ingestion_maint;
alter function op_turn(uuid) owner to ingestion_maint;
alter function op_turn_transitions(uuid) owner to ingestion_maint;
alter function op_acts_on(uuid) owner to ingestion_maint;
alter function op_turn_acts(int) owner to ingestion_maint;
alter function op_turn_page(uuid, uuid, int) owner to ingestion_maint;
alter function op_turn_states(uuid[]) owner to ingestion_maint;
alter function op_reap_turn(uuid, text) owner to ingestion_maint;
revoke all on function
  op_turn_counts(int), op_turn_list(text, text, int, int), op_find_turns(uuid, text, int),
  op_request(uuid), op_turn(uuid), op_turn_transitions(uuid), op_acts_on(uuid), op_turn_acts(int),
  op_turn_page(uuid, uuid, int), op_turn_states(uuid[]), op_reap_turn(uuid, text)
from public;
grant execute on function
  op_turn_counts(int), op_turn_list(text, text, int, int), op_find_turns(uuid, text, int),
  op_request(uuid), op_turn(uuid), op_turn_transitions(uuid), op_acts_on(uuid), op_turn_acts(int),
  op_reap_turn(uuid, text), op_end_turn(uuid, text, text)
to turnwire_ops, turnwire_frontend_gateway;
grant execute on function op_turn_page(uuid, uuid, int), op_turn_states(uuid[]) to turnwire_ops;
