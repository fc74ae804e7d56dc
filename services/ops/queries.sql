-- name: create_key
select key_id, tenant_id, principal_id, scopes
  from frontend_gateway.op_create_key(
    %(key_id)s, %(tenant)s, %(new_tenant_id)s, %(principal)s, %(new_principal_id)s,
    %(scopes)s, %(prefix)s, %(hash)s, %(actor)s)

-- name: create_door_key
select door_key_id, tenant_id
  from frontend_gateway.op_create_door_key(%(key_id)s, %(tenant)s, %(new_tenant_id)s, %(actor)s)

-- name: list_keys
select key_id, kind, tenant_id, tenant, principal_id, principal, prefix, scopes, created_at, revoked_at
  from frontend_gateway.op_list_keys(%(tenant)s)

-- name: revoke_key
select frontend_gateway.op_revoke_key(%(key_id)s, %(actor)s) as changed

-- name: server_settings
select current_setting('server_version') as version,
       current_setting('fsync') as fsync,
       current_setting('synchronous_commit') as synchronous_commit,
       current_setting('full_page_writes') as full_page_writes,
       extract(epoch from clock_timestamp())::double precision as epoch_s

-- name: unguarded_tables
-- Tables with a tenant that no forced row policy binds. Some are meant to be so: they are read
-- before a tenant is known, and only their owner's role and functions touch them.
select n.nspname || '.' || c.relname as name
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = any(%(schemas)s)
   and c.relkind in ('r', 'p')
   and exists (select from pg_attribute a
                where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped)
   and not (c.relrowsecurity and c.relforcerowsecurity
            and exists (select from pg_policy p where p.polrelid = c.oid))
   and c.relname <> all(%(exempt)s)
 order by 1

-- name: bypassing_roles
-- Login roles of ours that row policies would not bind.
select rolname as name from pg_roles
 where rolname like 'turnwire\_%%' and (rolsuper or rolbypassrls)
 order by 1

-- name: archivable
select tenant_id, conversation_id, below, messages
  from ingestion.op_archivable(%(older_than_s)s::double precision, %(max_rows)s::int)

-- name: archive
select ingestion.op_archive(%(conversation)s::uuid, %(below)s::bigint, %(actor)s::text) as moved

-- name: unarchive
select ingestion.op_unarchive(%(conversation)s::uuid, %(actor)s::text) as moved

-- name: turn_page
select * from ingestion.op_turn_page(%(after_tenant)s::uuid, %(after_turn)s::uuid, %(max_rows)s::int)

-- name: turn_states
select * from ingestion.op_turn_states(%(turn_ids)s::uuid[])

-- name: work
select * from llm_gateway.op_work(%(max_rows)s::int)

-- name: open_steps
select * from context_assembly.op_open_steps(%(max_rows)s::int)
