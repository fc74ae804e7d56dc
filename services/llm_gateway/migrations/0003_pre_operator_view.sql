-- What operators see of model calls: who holds a lease, what runs, what became of each attempt.
set local role llm_gateway_owner;
set local search_path = llm_gateway, turnwire, pg_catalog;
select turnwire.create_operator_view('llm_gateway');
grant select on workers, work, usage to llm_gateway_maint;
reset role;
set local search_path = llm_gateway, turnwire, pg_catalog;

create function op_leases()
  returns table (worker_id uuid, lease_until timestamptz, left_s double precision, running bigint,
                 oldest_claim timestamptz)
language sql stable security definer set search_path = llm_gateway, turnwire, pg_catalog as $$
  select w.worker_id, w.lease_until,
         extract(epoch from w.lease_until - turnwire.clock())::double precision,
         (select count(*) from work x where x.state = 'running' and x.worker_id = w.worker_id),
         (select min(x.claimed_at) from work x where x.state = 'running' and x.worker_id = w.worker_id)
    from workers w order by w.lease_until desc limit 1000
$$;

-- ($1 max_rows)
-- What waits, runs or waits to be forgotten, the oldest first.
create function op_work(max_rows int)
  returns table (tenant_id uuid, turn_id uuid, step_id uuid, state text, attempt int, worker_id uuid,
                 lease_until timestamptz, created_at timestamptz, claimed_at timestamptz,
                 progressed_at timestamptz, deadline_at timestamptz)
language sql stable security definer set search_path = llm_gateway, turnwire, pg_catalog as $$
  select w.tenant_id, w.turn_id, w.step_id, w.state, w.attempt, w.worker_id, l.lease_until,
         w.created_at, w.claimed_at, w.progressed_at, w.deadline_at
    from work w left join workers l on l.worker_id = w.worker_id
   order by w.created_at limit $1
$$;

-- ($1 turn)
create function op_turn_work(turn uuid)
  returns table (step_id uuid, state text, attempt int, base_attempt int, worker_id uuid,
                 lease_until timestamptz, cancel_reason text, created_at timestamptz,
                 claimed_at timestamptz, progressed_at timestamptz, deadline_at timestamptz)
language sql stable security definer set search_path = llm_gateway, turnwire, pg_catalog
set enable_seqscan = off as $$
  select w.step_id, w.state, w.attempt, w.base_attempt, w.worker_id, l.lease_until, w.cancel_reason,
         w.created_at, w.claimed_at, w.progressed_at, w.deadline_at
    from work w left join workers l on l.worker_id = w.worker_id
   where w.turn_id = $1 order by w.step_no limit 64
$$;

-- ($1 tenant, $2 step_ids)
create function op_turn_attempts(tenant uuid, step_ids uuid[])
  returns table (step_id uuid, attempt int, model text, outcome text, reason text, failure text,
                 requests int, first_token_ms int, duration_ms int, input_tokens int,
                 output_tokens int, cost_usd double precision, ended_at timestamptz)
language sql stable security definer set search_path = llm_gateway, turnwire, pg_catalog
set enable_seqscan = off as $$
  select a.step_id, a.attempt, a.model, a.outcome, a.reason, a.failure, a.requests, a.first_token_ms,
         a.duration_ms, u.input_tokens, u.output_tokens, u.cost_usd, a.ended_at
    from unnest($2) as wanted (step_id)
   cross join lateral (
     select x.* from attempts x
      where x.tenant_id = $1 and x.step_id = wanted.step_id order by x.attempt limit 100
   ) a
    left join lateral (
     select x.* from usage x
      where x.tenant_id = $1 and x.step_id = a.step_id and x.attempt = a.attempt limit 1
   ) u on true
   order by a.attempt
$$;

alter function op_leases() owner to llm_gateway_maint;
alter function op_work(int) owner to llm_gateway_maint;
alter function op_turn_work(uuid) owner to llm_gateway_maint;
alter function op_turn_attempts(uuid, uuid[]) owner to llm_gateway_maint;
revoke all on function op_leases(), op_work(int), op_turn_work(uuid), op_turn_attempts(uuid, uuid[])
from public;
grant execute on function op_leases(), op_work(int), op_turn_work(uuid), op_turn_attempts(uuid, uuid[])
to turnwire_ops, turnwire_frontend_gateway;
