-- What an operator may do with keys, each with its audit row in the same transaction.
--
-- Ids, hashes and prefixes come from the caller: SQL makes no random value. Owned by
-- frontend_gateway_maint, because an operator names tenants that may not exist yet.

set local search_path = frontend_gateway, turnwire, pg_catalog;

-- Finds a tenant by name or makes it; two callers at once get the same one.
create function ensure_tenant(tenant_name text, new_id uuid) returns uuid
language sql volatile security definer
set search_path = frontend_gateway, turnwire, pg_catalog as $$
    insert into tenants (id, name, created_at) values (new_id, tenant_name, turnwire.clock())
    on conflict (name) do nothing;
    select id from tenants where name = tenant_name;
$$;

create function ensure_principal(tenant uuid, principal_name text, new_id uuid) returns uuid
language sql volatile security definer
set search_path = frontend_gateway, turnwire, pg_catalog as $$
    insert into principals (tenant_id, id, name, created_at)
    values (tenant, new_id, principal_name, turnwire.clock())
    on conflict (tenant_id, name) do nothing;
    select id from principals where tenant_id = tenant and name = principal_name;
$$;

-- Stores a key's hash; the tenant and the principal are made where they are missing.
create function op_create_key(
    new_key_id uuid, tenant_name text, new_tenant_id uuid, principal_name text, new_principal_id uuid,
    key_scopes text[], key_prefix text, key_hash bytea, acting text
) returns table (key_id uuid, tenant_id uuid, principal_id uuid, scopes text[])
language plpgsql volatile security definer
set search_path = frontend_gateway, turnwire, pg_catalog as $$
declare
    tenant uuid := ensure_tenant(tenant_name, new_tenant_id);
    principal uuid := ensure_principal(tenant, principal_name, new_principal_id);
begin
    insert into api_keys (id, tenant_id, principal_id, prefix, hash, scopes, created_at)
    values (new_key_id, tenant, principal, key_prefix, key_hash, key_scopes, turnwire.clock());
    insert into operator_actions (action, target_id, actor, details, at)
    values ('key.created', new_key_id, acting,
            jsonb_build_object('tenant_id', tenant, 'principal_id', principal, 'scopes', key_scopes),
            turnwire.clock());
    return query select new_key_id, tenant, principal, key_scopes;
end $$;

-- Revokes an API key or a door key and ends its browser sessions. True if something changed.
create function op_revoke_key(revoked_id uuid, acting text) returns boolean
language plpgsql volatile security definer
set search_path = frontend_gateway, turnwire, pg_catalog as $$
declare
    changed integer;
    total integer := 0;
begin
    update api_keys set revoked_at = turnwire.clock() where id = revoked_id and revoked_at is null;
    get diagnostics changed = row_count;
    total := total + changed;
    update door_keys set revoked_at = turnwire.clock() where id = revoked_id and revoked_at is null;
    get diagnostics changed = row_count;
    total := total + changed;
    delete from ui_sessions where key_id = revoked_id;
    if total > 0 then
        insert into operator_actions (action, target_id, actor, details, at)
        values ('key.revoked', revoked_id, acting, '{}', turnwire.clock());
    end if;
    return total > 0;
end $$;

-- All keys, or those of one tenant, oldest first. Never a hash.
create function op_list_keys(of_tenant text default null)
returns table (key_id uuid, kind text, tenant_id uuid, tenant text, principal_id uuid, principal text,
               prefix text, scopes text[], created_at timestamptz, revoked_at timestamptz)
language sql stable security definer
set search_path = frontend_gateway, turnwire, pg_catalog as $$
    select k.id, 'api', k.tenant_id, t.name, k.principal_id, p.name, k.prefix, k.scopes,
           k.created_at, k.revoked_at
      from api_keys k
      join tenants t on t.id = k.tenant_id
      join principals p on (p.tenant_id, p.id) = (k.tenant_id, k.principal_id)
     where of_tenant is null or t.name = of_tenant
    union all
    select d.id, 'door', d.tenant_id, t.name, null, null, null, null, d.created_at, d.revoked_at
      from door_keys d
      left join tenants t on t.id = d.tenant_id
     where of_tenant is null or t.name = of_tenant
     order by 9, 1
$$;

-- Makes a door key for one tenant; its secret is derived from the master key and this id.
create function op_create_door_key(new_door_key_id uuid, tenant_name text, new_tenant_id uuid, acting text)
returns table (door_key_id uuid, tenant_id uuid)
language plpgsql volatile security definer
set search_path = frontend_gateway, turnwire, pg_catalog as $$
declare
    tenant uuid := ensure_tenant(tenant_name, new_tenant_id);
begin
    insert into door_keys (id, tenant_id, created_at)
    values (new_door_key_id, tenant, turnwire.clock());
    insert into operator_actions (action, target_id, actor, details, at)
    values ('door_key.created', new_door_key_id, acting,
            jsonb_build_object('tenant_id', tenant), turnwire.clock());
    return query select new_door_key_id, tenant;
end $$;

-- Deletes ended browser sessions, at most max_rows at a time; returns how many.
create function purge_ui_sessions(max_rows integer) returns integer
language plpgsql volatile security definer
set search_path = frontend_gateway, turnwire, pg_catalog as $$
declare
    deleted integer;
begin
    delete from ui_sessions where token_hash in (
        select token_hash from ui_sessions
         where expires_at < turnwire.clock() order by expires_at limit max_rows);
    get diagnostics deleted = row_count;
    return deleted;
end $$;

alter function ensure_tenant(text, uuid) owner to frontend_gateway_maint;
alter function ensure_principal(uuid, text, uuid) owner to frontend_gateway_maint;
alter function op_create_key(uuid, text, uuid, text, uuid, text[], text, bytea, text) owner to frontend_gateway_maint;
alter function op_revoke_key(uuid, text) owner to frontend_gateway_maint;
alter function op_list_keys(text) owner to frontend_gateway_maint;
alter function op_create_door_key(uuid, text, uuid, text) owner to frontend_gateway_maint;
alter function purge_ui_sessions(integer) owner to frontend_gateway_maint;

revoke all on function ensure_tenant(text, uuid) from public;
revoke all on function ensure_principal(uuid, text, uuid) from public;
revoke all on function op_create_key(uuid, text, uuid, text, uuid, text[], text, bytea, text) from public;
revoke all on function op_revoke_key(uuid, text) from public;
revoke all on function op_list_keys(text) from public;
revoke all on function op_create_door_key(uuid, text, uuid, text) from public;
revoke all on function purge_ui_sessions(integer) from public;

grant execute on function op_create_key(uuid, text, uuid, text, uuid, text[], text, bytea, text) to turnwire_ops;
grant execute on function op_revoke_key(uuid, text) to turnwire_ops;
grant execute on function op_list_keys(text) to turnwire_ops;
grant execute on function op_create_door_key(uuid, text, uuid, text) to turnwire_ops;
grant execute on function purge_ui_sessions(integer) to turnwire_frontend_gateway;
