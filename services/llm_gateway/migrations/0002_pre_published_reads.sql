-- What other services may read, and the retention that names no tenant.
--
-- Published reads belong to llm_gateway_reader, which does not own the tables, so the row policies
-- bind. Arrays of one call are parallel: element i of each belongs to the same wanted row.
set local role llm_gateway_owner;
set local search_path = llm_gateway, turnwire, pg_catalog;

-- Text of attempts that are over.
create function results_v1(tenants uuid[], step_ids uuid[], attempts int[])
  returns table (tenant_id uuid, turn_id uuid, step_id uuid, attempt int, text text, length int, sha256 text)
language sql stable security definer set search_path = llm_gateway, turnwire, pg_catalog as $$
  select r.tenant_id, r.turn_id, r.step_id, r.attempt, r.text, r.length, r.sha256
    from unnest($1, $2, $3) as wanted (tenant_id, step_id, attempt)
    join lateral (
      select x.* from results x
       where x.tenant_id = wanted.tenant_id and x.step_id = wanted.step_id
         and x.attempt = wanted.attempt limit 1
    ) r on true
$$;

-- The last checkpoint of running attempts; none is stored in an attempt's first second.
create function partials_v1(tenants uuid[], turn_ids uuid[])
  returns table (tenant_id uuid, turn_id uuid, step_id uuid, attempt int, upto text, text text)
language sql stable security definer set search_path = llm_gateway, turnwire, pg_catalog as $$
  select p.tenant_id, p.turn_id, p.step_id, p.attempt, p.upto, p.text
    from unnest($1, $2) as wanted (tenant_id, turn_id)
    join lateral (
      select x.* from partials x
       where x.tenant_id = wanted.tenant_id and x.turn_id = wanted.turn_id limit 1
    ) p on true
$$;

-- Texts and attempts that the end of their turn should have dropped, or that are merely old.
-- Returns how many rows went, at most max_rows of each kind.
create function op_purge(texts_older_than_s double precision, attempts_older_than_s double precision,
                         max_rows int)
  returns bigint
language plpgsql volatile security definer set search_path = llm_gateway, turnwire, pg_catalog as $$
declare
  gone bigint := 0;
  changed bigint;
begin
  delete from results r using (
    select x.tenant_id, x.step_id, x.attempt from results x
     where x.created_at < turnwire.clock() - make_interval(secs => texts_older_than_s)
     order by x.created_at limit max_rows) old
   where r.tenant_id = old.tenant_id and r.step_id = old.step_id and r.attempt = old.attempt;
  get diagnostics changed = row_count;
  gone := gone + changed;
  delete from partials p using (
    select x.tenant_id, x.turn_id from partials x
     where x.updated_at < turnwire.clock() - make_interval(secs => texts_older_than_s)
     order by x.updated_at limit max_rows) old
   where p.tenant_id = old.tenant_id and p.turn_id = old.turn_id;
  get diagnostics changed = row_count;
  gone := gone + changed;
  delete from attempts a using (
    select x.tenant_id, x.step_id, x.attempt from attempts x
     where x.ended_at < turnwire.clock() - make_interval(secs => attempts_older_than_s)
     order by x.ended_at limit max_rows) old
   where a.tenant_id = old.tenant_id and a.step_id = old.step_id and a.attempt = old.attempt;
  get diagnostics changed = row_count;
  return gone + changed;
end
$$;
reset role;
set local search_path = llm_gateway, turnwire, pg_catalog;

create view work_v1 with (security_barrier) as
select tenant_id, turn_id, step_id, state, attempt from llm_gateway.work;

alter function results_v1(uuid[], uuid[], int[]) owner to llm_gateway_reader;
alter function partials_v1(uuid[], uuid[]) owner to llm_gateway_reader;
alter view work_v1 owner to llm_gateway_reader;
alter function op_purge(double precision, double precision, int) owner to llm_gateway_maint;

revoke all on function
  results_v1(uuid[], uuid[], int[]), partials_v1(uuid[], uuid[]),
  op_purge(double precision, double precision, int)
from public;

grant execute on function results_v1(uuid[], uuid[], int[]) to turnwire_ingestion;
grant execute on function partials_v1(uuid[], uuid[]) to turnwire_frontend_gateway, turnwire_ingestion;
grant select on work_v1 to turnwire_context_assembly, turnwire_ingestion;
grant execute on function op_purge(double precision, double precision, int) to turnwire_llm_gateway;
