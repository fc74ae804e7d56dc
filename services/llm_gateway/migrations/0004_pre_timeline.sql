-- What the story of one turn is told from: the attempts of its steps.
set local role llm_gateway_owner;
set local search_path = llm_gateway, turnwire, pg_catalog;

grant select on attempts, usage to llm_gateway_reader;

-- ($1 tenants, $2 step_ids)
-- Attempts of steps, first one first, at most 64 a step; one that runs now comes last, as 'running'
-- and without an end. work is under no row policy, so its tenant is compared with the named ones here.
-- began_at is null where nobody measured how long the attempt took.
create function attempts_v1(tenants uuid[], step_ids uuid[])
  returns table (
    tenant_id uuid, turn_id uuid, step_id uuid, attempt int, model text, outcome text, reason text,
    failure text, requests int, first_token_ms int, duration_ms int, began_at timestamptz,
    ended_at timestamptz, input_tokens int, output_tokens int
  )
language sql stable security definer set search_path = llm_gateway, turnwire, pg_catalog
set enable_seqscan = off as $$
  select a.tenant_id, a.turn_id, a.step_id, a.attempt, a.model, a.outcome, a.reason, a.failure,
         a.requests, a.first_token_ms, a.duration_ms, a.began_at, a.ended_at,
         u.input_tokens, u.output_tokens
    from unnest($1, $2) with ordinality as wanted (tenant_id, step_id, no)
   cross join lateral (
     (select x.tenant_id, x.turn_id, x.step_id, x.attempt, x.model, x.outcome, x.reason, x.failure,
             x.requests, x.first_token_ms, x.duration_ms,
             x.ended_at - make_interval(secs => x.duration_ms / 1000.0) as began_at, x.ended_at
        from attempts x
       where x.tenant_id = wanted.tenant_id and x.step_id = wanted.step_id
       order by x.attempt limit 64)
     union all
     (select w.tenant_id, w.turn_id, w.step_id, w.attempt, w.model, 'running', null, null,
             null, null, null, w.claimed_at, null
        from work w
       where w.step_id = wanted.step_id and w.tenant_id = wanted.tenant_id and w.state = 'running'
         and (select turnwire.tenants()) @> array[w.tenant_id])
   ) a
    left join lateral (
      select y.input_tokens, y.output_tokens from usage y
       where y.tenant_id = a.tenant_id and y.step_id = a.step_id and y.attempt = a.attempt
       limit 1
    ) u on true
   order by wanted.no, a.attempt, a.ended_at nulls last
$$;
reset role;
set local search_path = llm_gateway, turnwire, pg_catalog;

alter function attempts_v1(uuid[], uuid[]) owner to llm_gateway_reader;
revoke all on function attempts_v1(uuid[], uuid[]) from public;
grant execute on function attempts_v1(uuid[], uuid[]) to turnwire_frontend_gateway;
