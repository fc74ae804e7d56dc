-- What operators see of steps and plans: ids, states, counts and times.
set local role context_assembly_owner;
set local search_path = context_assembly, turnwire, pg_catalog;
select turnwire.create_operator_view('context_assembly');
reset role;
set local search_path = context_assembly, turnwire, pg_catalog;

-- ($1 turn)
create function op_turn_steps(turn uuid)
  returns table (step_id uuid, step_no int, state text, reason text, invariant text, model text,
                 event_id uuid, fingerprint text, messages int, excluded int, used_tokens int,
                 budget_tokens int, created_at timestamptz, told_at timestamptz,
                 deadline_at timestamptz, ended_at timestamptz)
language sql stable security definer set search_path = context_assembly, turnwire, pg_catalog
set enable_seqscan = off as $$
  select s.step_id, s.step_no, s.state, s.reason, s.invariant, s.model, s.event_id,
         p.plan ->> 'fingerprint', (p.plan ->> 'count')::int,
         case when json_typeof(p.plan -> 'excluded') = 'array' then json_array_length(p.plan -> 'excluded') end,
         (p.plan -> 'budget' ->> 'used')::int, (p.plan -> 'budget' ->> 'tokens')::int,
         s.created_at, s.told_at, s.deadline_at, s.ended_at
    from steps s
    left join lateral (
      select x.plan from plans x where x.tenant_id = s.tenant_id and x.step_id = s.step_id limit 1
    ) p on true
   where s.turn_id = $1
   order by s.step_no limit 64
$$;

-- ($1 max_rows)
-- Steps whose turn is not known here to have ended, the one that was told longest ago first.
create function op_open_steps(max_rows int)
  returns table (tenant_id uuid, turn_id uuid, step_id uuid, state text, told_at timestamptz)
language sql stable security definer set search_path = context_assembly, turnwire, pg_catalog as $$
  select s.tenant_id, s.turn_id, s.step_id, s.state, s.told_at
    from steps s where s.event is not null order by s.told_at limit $1
$$;

alter function op_turn_steps(uuid) owner to context_assembly_maint;
alter function op_open_steps(int) owner to context_assembly_maint;
revoke all on function op_turn_steps(uuid), op_open_steps(int) from public;
grant execute on function op_turn_steps(uuid) to turnwire_ops, turnwire_frontend_gateway;
grant execute on function op_open_steps(int) to turnwire_ops;
