-- What other services may read, and what this service's own sweeps may do without a named tenant.
--
-- Published reads belong to context_assembly_reader, which does not own the tables, so the row
-- policies bind. Arrays of one call are parallel: element i of each belongs to the same wanted row.
set local role context_assembly_owner;
set local search_path = context_assembly, turnwire, pg_catalog;

-- ($1 tenants, $2 step_ids)
-- No row means that the turn has ended: close the work and tell nothing.
create function step_payloads_v1(tenants uuid[], step_ids uuid[])
  returns table (tenant_id uuid, step_id uuid, turn_id uuid, payload bytea)
language sql stable security definer set search_path = context_assembly, turnwire, pg_catalog as $$
  select p.tenant_id, p.step_id, p.turn_id, p.payload
    from unnest($1, $2) as wanted (tenant_id, step_id)
    join lateral (
      select x.* from payloads x
       where x.tenant_id = wanted.tenant_id and x.step_id = wanted.step_id limit 1
    ) p on true
$$;

-- ($1 tenants, $2 turn_ids)
-- Plans of a turn in the order of its steps; the newest 64 at most. The invariant that a plan breaks
-- stands beside it: such a plan was never sent.
create function plans_v1(tenants uuid[], turn_ids uuid[])
  returns table (
    tenant_id uuid, turn_id uuid, step_id uuid, step_no int, plan jsonb, created_at timestamptz,
    invariant text
  )
language sql stable security definer set search_path = context_assembly, turnwire, pg_catalog as $$
  select p.tenant_id, p.turn_id, p.step_id, p.step_no, p.plan::jsonb, p.created_at,
         (select s.invariant from steps s
           where s.tenant_id = p.tenant_id and s.step_id = p.step_id)
    from unnest($1, $2) with ordinality as wanted (tenant_id, turn_id, no)
    join lateral (
      select x.* from plans x
       where x.tenant_id = wanted.tenant_id and x.turn_id = wanted.turn_id
       order by x.step_no desc limit 64
    ) p on true
   order by wanted.no, p.step_no
$$;

-- ($1 silent_s, $2 max_rows)
-- Steps that were told that long ago and whose turn is not known here to have ended.
create function op_silent_steps(silent_s double precision, max_rows int)
  returns table (tenant_id uuid, turn_id uuid, step_id uuid, event_id uuid)
language sql stable security definer set search_path = context_assembly, turnwire, pg_catalog as $$
  select s.tenant_id, s.turn_id, s.step_id, s.event_id
    from steps s
   where s.event is not null
     and s.told_at < turnwire.clock() - make_interval(secs => $1)
   order by s.told_at limit $2
$$;

-- ($1 older_than_s, $2 max_rows)
create function op_old_payloads(older_than_s double precision, max_rows int)
  returns table (tenant_id uuid, turn_id uuid, step_id uuid)
language sql stable security definer set search_path = context_assembly, turnwire, pg_catalog as $$
  select p.tenant_id, p.turn_id, p.step_id
    from payloads p
   where p.created_at < turnwire.clock() - make_interval(secs => $1)
   order by p.created_at limit $2
$$;

-- ($1 keep_s, $2 max_rows)
create function op_expire_captures(keep_s double precision, max_rows int) returns bigint
language sql volatile security definer set search_path = context_assembly, turnwire, pg_catalog as $$
  with old as (
    select c.tenant_id, c.step_id from captures c
     where c.captured_at < turnwire.clock() - make_interval(secs => $1)
     order by c.captured_at limit $2
  ), gone as (
    delete from captures c using old
     where c.tenant_id = old.tenant_id and c.step_id = old.step_id returning 1
  )
  select count(*) from gone
$$;

-- ($1 keep_s, $2 max_rows)
create function op_expire_token_counts(keep_s double precision, max_rows int) returns bigint
language sql volatile security definer set search_path = context_assembly, turnwire, pg_catalog as $$
  with old as (
    select k.tenant_id, k.sha256, k.tokenizer from token_counts k
     where k.counted_at < turnwire.clock() - make_interval(secs => $1)
     order by k.counted_at limit $2
  ), gone as (
    delete from token_counts k using old
     where k.tenant_id = old.tenant_id and k.sha256 = old.sha256 and k.tokenizer = old.tokenizer
     returning 1
  )
  select count(*) from gone
$$;
reset role;
set local search_path = context_assembly, turnwire, pg_catalog;

create view steps_v1 with (security_barrier) as
select tenant_id, turn_id, step_id, step_no, state
  from context_assembly.steps;

alter function step_payloads_v1(uuid[], uuid[]) owner to context_assembly_reader;
alter function plans_v1(uuid[], uuid[]) owner to context_assembly_reader;
alter view steps_v1 owner to context_assembly_reader;
alter function op_silent_steps(double precision, int) owner to context_assembly_maint;
alter function op_old_payloads(double precision, int) owner to context_assembly_maint;
alter function op_expire_captures(double precision, int) owner to context_assembly_maint;
alter function op_expire_token_counts(double precision, int) owner to context_assembly_maint;

revoke all on function
  step_payloads_v1(uuid[], uuid[]),
  plans_v1(uuid[], uuid[]),
  op_silent_steps(double precision, int),
  op_old_payloads(double precision, int),
  op_expire_captures(double precision, int),
  op_expire_token_counts(double precision, int)
from public;

grant execute on function step_payloads_v1(uuid[], uuid[]) to turnwire_llm_gateway;
grant execute on function plans_v1(uuid[], uuid[]) to turnwire_frontend_gateway, turnwire_ops;
grant select on steps_v1 to turnwire_ingestion;
grant execute on function
  op_silent_steps(double precision, int),
  op_old_payloads(double precision, int),
  op_expire_captures(double precision, int),
  op_expire_token_counts(double precision, int)
to turnwire_context_assembly;
