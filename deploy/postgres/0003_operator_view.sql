-- What operators see of every service: its processes, its outbox and its dead letters, by ids, counts
-- and times. Nothing here returns a value, a payload or a header that a producer wrote.

-- Gives a schema the table in which its processes say that they run.
create function turnwire.create_instances(schema_name text) returns void language plpgsql
as $$
declare
  caller text := current_user;
begin
  reset role;
  execute format($ddl$
    create table %1$I.instances (
      instance_id uuid primary key,
      version text not null,
      place text not null,
      checks jsonb not null,
      lag jsonb not null,
      started_at timestamptz not null,
      beat_at timestamptz not null
    ) with (fillfactor = 50);
    comment on table %1$I.instances is
      'One row per running process, renewed every few seconds; an old one is of a process that died.';
    alter table %1$I.instances owner to %2$I;
    grant select, insert, update, delete on %1$I.instances to %3$I;
    grant select on %1$I.instances to %4$I;
    create function %1$I.op_instances()
      returns table (instance_id uuid, version text, place text, checks jsonb, lag jsonb,
                     started_at timestamptz, beat_at timestamptz, silent_s double precision)
      language sql stable security definer set search_path = %1$I, turnwire, pg_catalog
    as $body$
      select i.instance_id, i.version, i.place, i.checks, i.lag, i.started_at, i.beat_at,
             extract(epoch from turnwire.clock() - i.beat_at)::double precision
        from instances i order by i.started_at, i.instance_id limit 1000
    $body$;
    alter function %1$I.op_instances() owner to %4$I;
    revoke all on function %1$I.op_instances() from public;
    grant execute on function %1$I.op_instances() to turnwire_ops, turnwire_frontend_gateway;
  $ddl$, schema_name, schema_name || '_owner', 'turnwire_' || schema_name, schema_name || '_maint');
  if caller <> session_user then
    execute format('set local role %I', caller);
  end if;
end
$$;

-- Gives a schema that has the mechanics the reads of its outbox and its dead letters, and the
-- re-driving of one: an operator asks for it, the consuming service does it. A record is not put
-- back on its topic, because a consumer may not write there.
create function turnwire.create_operator_view(schema_name text) returns void language plpgsql
as $$
declare
  caller text := current_user;
  maint_role text := schema_name || '_maint';
  service_role text := 'turnwire_' || schema_name;
begin
  perform turnwire.create_instances(schema_name);
  reset role;
  execute format($ddl$
    alter table %1$I.dead_letters add column redrive_at timestamptz;
    comment on column %1$I.dead_letters.redrive_at is
      'Somebody wants it handled again; the service takes it once this time has come.';
    create index dead_letters_to_redrive on %1$I.dead_letters (redrive_at) where redrive_at is not null;
    -- By hash, because a foreign producer's key may be longer than an index can hold.
    create index dead_letters_of_key on %1$I.dead_letters (md5(key));

    create table %1$I.operator_acts (
      action text not null,
      target_id uuid not null,
      actor text not null,
      details jsonb not null,
      at timestamptz not null,
      primary key (action, target_id, at)
    );
    comment on table %1$I.operator_acts is 'Audit of what operators did to dead letters here.';
    alter table %1$I.operator_acts owner to %2$I;
    grant select, insert on %1$I.operator_acts to %3$I;
    grant update, delete on %1$I.dead_letters to %3$I;
    grant select on %1$I.inbox to %3$I;
  $ddl$, schema_name, schema_name || '_owner', maint_role);
  execute format($ddl$
    create function %1$I.conversation_of(record_key bytea) returns uuid
      language sql immutable set search_path = %1$I, turnwire, pg_catalog
    as $body$
      select case when encode(record_key, 'escape')
                       ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
                  then encode(record_key, 'escape')::uuid end
    $body$;

    create function %1$I.op_dlq_status()
      returns table (letters bigint, oldest_s double precision, asked bigint)
      language sql stable security definer set search_path = %1$I, turnwire, pg_catalog
    as $body$
      select count(*), coalesce(extract(epoch from turnwire.clock() - min(at)), 0)::double precision,
             count(*) filter (where redrive_at is not null)
        from dead_letters
    $body$;

    create function %1$I.op_dlq_get(letter uuid)
      returns table (id uuid, tenant_id uuid, conversation_id uuid, consumer text, topic text,
                     partition int, "offset" bigint, event_id uuid, event_type text, reason text,
                     error text, attempts int, value_bytes int, value_sha256 text, headers int,
                     is_asked boolean, at timestamptz)
      language sql stable security definer set search_path = %1$I, turnwire, pg_catalog
    as $body$
      select d.id, d.tenant_id, conversation_of(d.key), d.consumer, d.topic, d.partition, d."offset",
             d.event_id, d.event_type, d.reason, d.error, d.attempts, octet_length(d.value),
             encode(sha256(d.value), 'hex'), jsonb_array_length(d.headers), d.redrive_at is not null,
             d.at
        from dead_letters d where d.id = letter
    $body$;

    create function %1$I.op_dlq_of(conversation uuid, max_rows int)
      returns table (id uuid, consumer text, topic text, partition int, "offset" bigint, event_id uuid,
                     event_type text, reason text, error text, attempts int, at timestamptz)
      language sql stable security definer set search_path = %1$I, turnwire, pg_catalog
      set enable_seqscan = off
    as $body$
      select d.id, d.consumer, d.topic, d.partition, d."offset", d.event_id, d.event_type, d.reason,
             d.error, d.attempts, d.at
        from dead_letters d
       where md5(d.key) = md5(convert_to(conversation::text, 'UTF8'))
         and d.key = convert_to(conversation::text, 'UTF8')
       order by d.at desc limit max_rows
    $body$;

    create function %1$I.op_dlq_redrive(letter uuid, acting text) returns text
      language plpgsql volatile security definer set search_path = %1$I, turnwire, pg_catalog
    as $body$
    declare
      found_letter dead_letters;
    begin
      if acting = '' then
        raise exception 'a re-drive names who wants it' using errcode = 'TW002';
      end if;
      select * into found_letter from dead_letters d where d.id = letter for update;
      if not found then
        return null;
      end if;
      if found_letter.value is null then
        raise exception 'its bytes could not be read and are not kept' using errcode = 'TW002';
      end if;
      update dead_letters d set redrive_at = turnwire.clock()
       where d.id = letter and d.redrive_at is null;
      insert into operator_acts (action, target_id, actor, details, at)
      values ('dead_letter.redriven', letter, acting,
              jsonb_build_object('topic', found_letter.topic, 'partition', found_letter.partition,
                                 'offset', found_letter."offset", 'reason', found_letter.reason,
                                 'tenant_id', found_letter.tenant_id,
                                 'event_id', found_letter.event_id),
              turnwire.clock())
      on conflict do nothing;
      return 'asked';
    end
    $body$;

    -- For the service alone: what was asked for, each for one process at a time.
    create function %1$I.op_take_redrives(of_consumer text, hold_s double precision, max_rows int)
      returns table (id uuid, topic text, partition int, "offset" bigint, key bytea, headers jsonb,
                     value bytea)
      language sql volatile security definer set search_path = %1$I, turnwire, pg_catalog
    as $body$
      with due as (
        select d.id from dead_letters d
         where d.redrive_at <= turnwire.clock() and d.consumer = of_consumer
         order by d.redrive_at limit max_rows for update skip locked
      )
      update dead_letters d set redrive_at = turnwire.clock() + make_interval(secs => hold_s)
        from due where d.id = due.id
      returning d.id, d.topic, d.partition, d."offset", d.key, d.headers, d.value
    $body$;

    -- For the service alone: it was handled (no reason), or it was refused again and stays.
    create function %1$I.op_close_redrive(letter uuid, new_reason text, new_error text) returns void
      language plpgsql volatile security definer set search_path = %1$I, turnwire, pg_catalog
    as $body$
    begin
      if new_reason is null then
        delete from dead_letters d where d.id = letter;
      else
        update dead_letters d set redrive_at = null, reason = new_reason, error = new_error,
               attempts = d.attempts + 1
         where d.id = letter;
      end if;
    end
    $body$;

    create function %1$I.op_outbox_list(max_rows int)
      returns table (id bigint, topic text, key text, event_id uuid, type text, value_bytes int,
                     created_at timestamptz, age_s double precision)
      language sql stable security definer set search_path = %1$I, turnwire, pg_catalog
    as $body$
      select o.id, o.topic, o.key, o.event_id, o.type, octet_length(o.payload), o.created_at,
             extract(epoch from turnwire.clock() - o.created_at)::double precision
        from outbox o order by o.id limit max_rows
    $body$;

    create function %1$I.op_outbox_of(conversation uuid, in_bucket smallint, max_rows int)
      returns table (id bigint, topic text, event_id uuid, type text, created_at timestamptz)
      language sql stable security definer set search_path = %1$I, turnwire, pg_catalog
    as $body$
      select o.id, o.topic, o.event_id, o.type, o.created_at
        from outbox o where o.bucket = in_bucket and o.key = conversation::text
       order by o.id limit max_rows
    $body$;

    create function %1$I.op_outbox_dead_list(max_rows int)
      returns table (id bigint, topic text, key text, event_id uuid, type text, value_bytes int,
                     error text, at timestamptz)
      language sql stable security definer set search_path = %1$I, turnwire, pg_catalog
    as $body$
      select o.id, o.topic, o.key, o.event_id, o.type, octet_length(o.payload), o.error, o.at
        from outbox_dead o order by o.id desc limit max_rows
    $body$;

    -- Which consumers have handled these events. There are few consumers: they are found one after
    -- the other in the key's order, since the key begins with them.
    create function %1$I.op_deliveries(event_ids uuid[])
      returns table (consumer text, event_id uuid, at timestamptz)
      language sql stable security definer set search_path = %1$I, turnwire, pg_catalog
      set enable_seqscan = off
    as $body$
      with recursive names as (
        (select i.consumer from inbox i order by i.consumer limit 1)
        union all
        select (select i.consumer from inbox i where i.consumer > n.consumer
                 order by i.consumer limit 1)
          from names n where n.consumer is not null
      )
      select i.consumer, i.event_id, i.at
        from names n
       cross join unnest(event_ids) as wanted (id)
       cross join lateral (
         select x.* from inbox x where x.consumer = n.consumer and x.event_id = wanted.id limit 1
       ) i
       where n.consumer is not null
       order by i.at, i.consumer
    $body$;

    create function %1$I.op_acts(max_rows int)
      returns table (action text, target_id uuid, actor text, details jsonb, at timestamptz)
      language sql stable security definer set search_path = %1$I, turnwire, pg_catalog
    as $body$
      select a.action, a.target_id, a.actor, a.details, a.at
        from operator_acts a order by a.at desc limit max_rows
    $body$;
  $ddl$, schema_name);
  execute format($ddl$
    alter function %1$I.conversation_of(bytea) owner to %2$I;
    alter function %1$I.op_dlq_status() owner to %2$I;
    alter function %1$I.op_dlq_get(uuid) owner to %2$I;
    alter function %1$I.op_dlq_of(uuid, int) owner to %2$I;
    alter function %1$I.op_dlq_redrive(uuid, text) owner to %2$I;
    alter function %1$I.op_take_redrives(text, double precision, int) owner to %2$I;
    alter function %1$I.op_close_redrive(uuid, text, text) owner to %2$I;
    alter function %1$I.op_outbox_list(int) owner to %2$I;
    alter function %1$I.op_outbox_of(uuid, smallint, int) owner to %2$I;
    alter function %1$I.op_outbox_dead_list(int) owner to %2$I;
    alter function %1$I.op_deliveries(uuid[]) owner to %2$I;
    alter function %1$I.op_acts(int) owner to %2$I;
    revoke all on function %1$I.conversation_of(bytea), %1$I.op_dlq_status(), %1$I.op_dlq_get(uuid),
      %1$I.op_dlq_of(uuid, int), %1$I.op_dlq_redrive(uuid, text),
      %1$I.op_take_redrives(text, double precision, int), %1$I.op_close_redrive(uuid, text, text),
      %1$I.op_outbox_list(int), %1$I.op_outbox_of(uuid, smallint, int),
      %1$I.op_outbox_dead_list(int), %1$I.op_deliveries(uuid[]), %1$I.op_acts(int)
    from public;
    grant execute on function %1$I.op_take_redrives(text, double precision, int),
      %1$I.op_close_redrive(uuid, text, text)
    to %3$I;
    grant execute on function %1$I.op_dlq_list(int), %1$I.op_outbox_status(), %1$I.op_dlq_status(),
      %1$I.op_dlq_get(uuid), %1$I.op_dlq_of(uuid, int), %1$I.op_dlq_redrive(uuid, text),
      %1$I.op_outbox_list(int), %1$I.op_outbox_of(uuid, smallint, int),
      %1$I.op_outbox_dead_list(int), %1$I.op_deliveries(uuid[]), %1$I.op_acts(int)
    to turnwire_ops, turnwire_frontend_gateway;
  $ddl$, schema_name, maint_role, service_role);
  if caller <> session_user then
    execute format('set local role %I', caller);
  end if;
end
$$;

revoke all on function turnwire.create_instances(text), turnwire.create_operator_view(text) from public;
grant execute on function turnwire.create_instances(text), turnwire.create_operator_view(text) to
  frontend_gateway_owner, ingestion_owner, context_assembly_owner, llm_gateway_owner;
