-- One triple of roles without login per schema, one login per service, one for operators.
--   <schema>_owner   owns the schema and its tables; nobody logs in as it
--   <schema>_reader  owns the functions and views that other services read; row policies bind it
--   <schema>_maint   owns what acts without a named tenant: sweeps, retention, operator functions
-- Roles belong to the whole server, so every statement may meet its own earlier result.
do $$
declare
  service text;
  role_name text;
begin
  foreach service in array array['frontend_gateway', 'ingestion', 'context_assembly', 'llm_gateway'] loop
    foreach role_name in array array[service || '_owner', service || '_reader', service || '_maint'] loop
      if not exists (select from pg_roles where rolname = role_name) then
        execute format('create role %I nologin nobypassrls nosuperuser', role_name);
      end if;
    end loop;
    if not exists (select from pg_roles where rolname = 'turnwire_' || service) then
      execute format('create role %I login nobypassrls nosuperuser', 'turnwire_' || service);
    end if;
  end loop;
  if not exists (select from pg_roles where rolname = 'turnwire_ops') then
    create role turnwire_ops login nobypassrls nosuperuser;
  end if;
  -- A migrating role that is no superuser must be able to give things to these roles.
  if not (select rolsuper from pg_roles where rolname = current_user) then
    foreach service in array array['frontend_gateway', 'ingestion', 'context_assembly', 'llm_gateway'] loop
      execute format('grant %I, %I, %I to current_user',
                     service || '_owner', service || '_reader', service || '_maint');
    end loop;
  end if;
end
$$;
