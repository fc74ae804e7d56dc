-- What operators see of the gateway: its processes, and what was done with keys.
set local role frontend_gateway_owner;
set local search_path = frontend_gateway, turnwire, pg_catalog;
select turnwire.create_instances('frontend_gateway');
reset role;
set local search_path = frontend_gateway, turnwire, pg_catalog;

create function op_acts(max_rows int)
  returns table (action text, target_id uuid, actor text, details jsonb, at timestamptz)
language sql stable security definer set search_path = frontend_gateway, turnwire, pg_catalog as $$
  select a.action, a.target_id, a.actor, a.details, a.at
    from operator_actions a order by a.at desc limit $1
$$;
alter function op_acts(int) owner to frontend_gateway_maint;
revoke all on function op_acts(int) from public;
grant execute on function op_acts(int) to turnwire_ops, turnwire_frontend_gateway;
