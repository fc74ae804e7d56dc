-- What the story of one turn is told from: its steps, and when each was decided.
set local role context_assembly_owner;
set local search_path = context_assembly, turnwire, pg_catalog;

-- ($1 tenants, $2 turn_ids)
-- Steps of a turn in their order; the first 64 at most. "(tenant_id = x) is true" for the reason
-- given at the table's keys: the look-up is by turn.
create function turn_steps_v1(tenants uuid[], turn_ids uuid[])
  returns table (
    tenant_id uuid, turn_id uuid, step_id uuid, step_no int, state text, reason text, invariant text,
    model text, created_at timestamptz, ended_at timestamptz
  )
language sql stable security definer set search_path = context_assembly, turnwire, pg_catalog
set enable_seqscan = off as $$
  select s.tenant_id, s.turn_id, s.step_id, s.step_no, s.state, s.reason, s.invariant, s.model,
         s.created_at, s.ended_at
    from unnest($1, $2) with ordinality as wanted (tenant_id, turn_id, no)
   cross join lateral (
     select x.* from steps x
      where x.turn_id = wanted.turn_id and (x.tenant_id = wanted.tenant_id) is true
      order by x.step_no limit 64
   ) s
   order by wanted.no, s.step_no
$$;
reset role;
set local search_path = context_assembly, turnwire, pg_catalog;

alter function turn_steps_v1(uuid[], uuid[]) owner to context_assembly_reader;
revoke all on function turn_steps_v1(uuid[], uuid[]) from public;
grant execute on function turn_steps_v1(uuid[], uuid[]) to turnwire_frontend_gateway;
