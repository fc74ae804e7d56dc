-- What all schemas share: the clock, the named tenants, and the tables of the mechanics.
revoke all on schema public from public;
-- The schema itself is made by the migration engine, for its ledger.
grant usage on schema turnwire to public;

-- The only now() of this database, so that a simulation can replace its body.
create function turnwire.clock() returns timestamptz language sql stable parallel safe
as $$ select pg_catalog.now() $$;

-- The tenants that the running transaction has named; none, unless it named some.
create function turnwire.tenants() returns uuid[] language sql stable parallel safe
as $$ select coalesce(string_to_array(nullif(current_setting('app.tenant_ids', true), ''), ',')::uuid[], '{}'::uuid[]) $$;

do $$
declare
  service text;
begin
  foreach service in array array['frontend_gateway', 'ingestion', 'context_assembly', 'llm_gateway'] loop
    execute format('create schema %I authorization %I', service, service || '_owner');
    execute format('grant usage on schema %I to %I, %I, %I', service,
                   service || '_reader', service || '_maint', 'turnwire_' || service);
    -- Functions are given to these two roles, which must be able to hold them; nobody logs in as them.
    execute format('grant create on schema %I to %I, %I', service, service || '_reader', service || '_maint');
  end loop;
  grant usage on schema frontend_gateway, ingestion, context_assembly, llm_gateway to
    turnwire_frontend_gateway, turnwire_ingestion, turnwire_context_assembly, turnwire_llm_gateway, turnwire_ops;
end
$$;

-- Gives a table the row policies of a tenant's data: nobody sees a row of a tenant that the
-- transaction did not name, except the schema's maintenance role.
create function turnwire.bind_to_tenants(schema_name text, table_name text) returns void language plpgsql
as $$
begin
  execute format('alter table %I.%I enable row level security', schema_name, table_name);
  execute format('alter table %I.%I force row level security', schema_name, table_name);
  -- Not "tenant_id = any(...)": as an index condition it loses the index's order, and a LIMIT then
  -- reads the whole conversation.
  execute format('create policy tenants on %I.%I using ((select turnwire.tenants()) @> array[tenant_id]) '
                 'with check ((select turnwire.tenants()) @> array[tenant_id])', schema_name, table_name);
  execute format('create policy maintenance on %I.%I to %I using (true) with check (true)',
                 schema_name, table_name, schema_name || '_maint');
end
$$;

-- Creates outbox, inbox and dead letters in a service's schema, with the rights of its roles.
create function turnwire.create_mechanics(schema_name text) returns void language plpgsql
as $$
declare
  caller text := current_user;
  owner_role text := schema_name || '_owner';
  maint_role text := schema_name || '_maint';
  service_role text := 'turnwire_' || schema_name;
begin
  reset role;
  execute format($ddl$
    create table %1$I.outbox (
      id bigint generated always as identity primary key,
      bucket smallint not null,
      topic text not null,
      key text not null,
      event_id uuid not null,
      type text not null,
      headers jsonb not null,
      payload bytea not null,
      created_at timestamptz not null
    ) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
            autovacuum_vacuum_cost_delay = 0, fillfactor = 90);
    create index outbox_bucket on %1$I.outbox (bucket, id);
    comment on table %1$I.outbox is 'Events told by a committed transaction, deleted when the broker has them.';

    create table %1$I.outbox_dead (
      id bigint primary key,
      topic text not null,
      key text not null,
      event_id uuid not null,
      type text not null,
      headers jsonb not null,
      payload bytea not null,
      error text not null,
      at timestamptz not null
    );
    comment on table %1$I.outbox_dead is 'Outbox rows that the broker will never take.';

    create table %1$I.inbox (
      consumer text not null,
      event_id uuid not null,
      at timestamptz not null,
      primary key (consumer, event_id)
    );
    create index inbox_at on %1$I.inbox (at);
    comment on table %1$I.inbox is 'Events whose effect is committed.';

    create table %1$I.dead_letters (
      id uuid primary key,
      tenant_id uuid,
      consumer text not null,
      topic text not null,
      partition int not null,
      "offset" bigint not null,
      key bytea,
      headers jsonb not null,
      value bytea,
      event_id uuid,
      event_type text,
      reason text not null,
      error text not null,
      attempts int not null,
      at timestamptz not null,
      mirrored boolean not null
    );
    create index dead_letters_at on %1$I.dead_letters (at);
    comment on table %1$I.dead_letters is 'Records that could not be handled, as they came.';
  $ddl$, schema_name);
  execute format($ddl$
    alter table %1$I.outbox owner to %2$I;
    alter table %1$I.outbox_dead owner to %2$I;
    alter table %1$I.inbox owner to %2$I;
    alter table %1$I.dead_letters owner to %2$I;
    grant select, insert, delete on %1$I.outbox, %1$I.outbox_dead, %1$I.inbox to %3$I;
    -- A service parks dead letters and drops old ones; they are read through op_dlq_list alone.
    grant insert, delete on %1$I.dead_letters to %3$I;
    grant select (id, at) on %1$I.dead_letters to %3$I;
    grant select on %1$I.dead_letters, %1$I.outbox, %1$I.outbox_dead to %4$I;
  $ddl$, schema_name, owner_role, service_role, maint_role);
  execute format($ddl$
    create function %1$I.op_dlq_list(max_rows int)
      returns table (id uuid, tenant_id uuid, consumer text, topic text, partition int, "offset" bigint,
                     event_id uuid, event_type text, reason text, error text, attempts int,
                     value_bytes int, at timestamptz)
      language sql stable security definer set search_path = %1$I, turnwire, pg_catalog
    as $body$
      select id, tenant_id, consumer, topic, partition, "offset", event_id, event_type, reason, error,
             attempts, length(value), at
        from dead_letters order by at desc, id desc limit max_rows
    $body$;
    create function %1$I.op_outbox_status()
      returns table (pending bigint, oldest_s double precision, dead bigint)
      language sql stable security definer set search_path = %1$I, turnwire, pg_catalog
    as $body$
      select (select count(*) from outbox),
             (select coalesce(extract(epoch from turnwire.clock() - min(created_at)), 0) from outbox),
             (select count(*) from outbox_dead)
    $body$;
    alter function %1$I.op_dlq_list(int) owner to %2$I;
    alter function %1$I.op_outbox_status() owner to %2$I;
    revoke all on function %1$I.op_dlq_list(int), %1$I.op_outbox_status() from public;
    grant execute on function %1$I.op_dlq_list(int), %1$I.op_outbox_status() to turnwire_ops;
  $ddl$, schema_name, maint_role);
  if caller <> session_user then
    execute format('set local role %I', caller);
  end if;
end
$$;

revoke all on function turnwire.bind_to_tenants(text, text), turnwire.create_mechanics(text) from public;
grant execute on function turnwire.bind_to_tenants(text, text), turnwire.create_mechanics(text) to
  frontend_gateway_owner, ingestion_owner, context_assembly_owner, llm_gateway_owner;
