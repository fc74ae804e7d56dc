-- Tenants, principals, keys and browser sessions: who may ask.
--
-- Without row policy, because they are read before a tenant is known: tenants, api_keys, door_keys,
-- ui_sessions, operator_actions. Only the service's role and this schema's definer functions touch them.
-- No id and no time comes from a column default.

set local role frontend_gateway_owner;
set local search_path = frontend_gateway, turnwire, pg_catalog;

create table tenants (
    id uuid primary key,
    name text not null unique check (name <> '' and length(name) <= 200),
    created_at timestamptz not null
);

-- A principal survives the rotation of its keys: conversations belong to it.
create table principals (
    tenant_id uuid not null references tenants (id),
    id uuid not null,
    name text not null check (name <> '' and length(name) <= 200),
    created_at timestamptz not null,
    primary key (tenant_id, id),
    unique (tenant_id, name)
);
select turnwire.bind_to_tenants('frontend_gateway', 'principals');

create table api_keys (
    id uuid primary key,
    tenant_id uuid not null,
    principal_id uuid not null,
    prefix text not null,
    hash bytea not null unique check (octet_length(hash) = 32),
    scopes text[] not null check (scopes <@ array['chat', 'read', 'admin', 'captures'] and cardinality(scopes) > 0),
    created_at timestamptz not null,
    revoked_at timestamptz,
    foreign key (tenant_id, principal_id) references principals (tenant_id, id)
);
create index api_keys_of_principal on api_keys (tenant_id, principal_id);

-- tenant_id null: the key may speak for every tenant (the gateway's own).
create table door_keys (
    id uuid primary key,
    tenant_id uuid references tenants (id),
    created_at timestamptz not null,
    revoked_at timestamptz
);

-- Browser sessions of the chat page. The cookie's value is stored as a hash only.
create table ui_sessions (
    token_hash bytea primary key check (octet_length(token_hash) = 32),
    key_id uuid not null references api_keys (id),
    created_at timestamptz not null,
    expires_at timestamptz not null
);
create index ui_sessions_by_expiry on ui_sessions (expires_at);
create index ui_sessions_of_key on ui_sessions (key_id);

-- One row per act of an operator; an act on one target happens once.
create table operator_actions (
    action text not null,
    target_id uuid not null,
    actor text not null,
    details jsonb not null,
    at timestamptz not null,
    primary key (action, target_id)
);

-- The gateway's own door key: libs/door.py, GATEWAY_DOOR_KEY_ID. Its secret is derived, never stored.
insert into door_keys (id, tenant_id, created_at)
values ('5e7d3c1a-90b4-5f26-8a17-c2d4e6f80a1b', null, turnwire.clock());

grant select on api_keys to turnwire_frontend_gateway;
grant select, insert, delete on ui_sessions to turnwire_frontend_gateway;

grant select on door_keys to frontend_gateway_reader;

grant select, insert on tenants, principals, operator_actions to frontend_gateway_maint;
grant select, insert, update on api_keys, door_keys to frontend_gateway_maint;
grant select, delete on ui_sessions to frontend_gateway_maint;

-- Published reads. ----------------------------------------------------------------------------
reset role;
set local search_path = frontend_gateway, turnwire, pg_catalog;

create view door_keys_v1 with (security_barrier) as
select id, tenant_id, revoked_at from frontend_gateway.door_keys;
alter view door_keys_v1 owner to frontend_gateway_reader;
grant select on door_keys_v1 to turnwire_ingestion;
