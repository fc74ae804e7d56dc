-- Instructions, capture postures and captured payloads: what front ends and operators may do with
-- them, and what goes when a message or a conversation is gone.
--
-- Functions of context_assembly_maint that take a tenant from outside check that the transaction
-- has named it: the role that owns them could see every tenant.
set local role context_assembly_owner;
set local search_path = context_assembly, turnwire, pg_catalog;

create function check_tenant(tenant uuid) returns void
language plpgsql stable set search_path = context_assembly, turnwire, pg_catalog as $$
begin
  if not (select turnwire.tenants()) @> array[tenant] then
    raise exception 'tenant % is not named by this transaction', tenant using errcode = 'TW005';
  end if;
end
$$;

-- ($1 tenants, $2 scope_ids, $3 kinds, $4 versions)
-- Texts that were set; an element of versions that is null, or no versions at all, asks for the
-- current one. A scope is the tenant itself or a conversation.
create function instructions_v1(tenants uuid[], scope_ids uuid[], kinds text[], versions int[])
  returns table (
    tenant_id uuid, scope_id uuid, kind text, version int, text text, sha256 text, is_current boolean,
    set_by text, created_at timestamptz
  )
language sql stable security definer set search_path = context_assembly, turnwire, pg_catalog as $$
  select i.tenant_id, i.scope_id, i.kind, i.version, i.text, i.sha256, i.is_current, i.set_by,
         i.created_at
    from unnest($1, $2, $3, coalesce($4, '{}')) with ordinality
         as wanted (tenant_id, scope_id, kind, version, no)
    join lateral (
      select x.* from instructions x
       where (x.tenant_id = wanted.tenant_id) is true and x.scope_id = wanted.scope_id
         and x.kind = wanted.kind
         and case when wanted.version is null then x.is_current
                  else x.version = wanted.version end
       limit 1
    ) i on true
   order by wanted.no
$$;

-- The longest current texts of one kind that a tenant's conversations have: with what the tenant
-- itself says they share a section of the prompt. Operators ask for it, never a turn.
create function longest_instructions_v1(tenant uuid, of_kind text, max_rows int)
  returns table (scope_id uuid, kind text, version int, text text, created_at timestamptz)
language sql stable security definer set search_path = context_assembly, turnwire, pg_catalog as $$
  select i.scope_id, i.kind, i.version, i.text, i.created_at
    from instructions i
   where i.tenant_id = $1 and i.scope_id <> $1 and i.kind = $2 and i.is_current
   order by length(i.text) desc, i.scope_id
   limit $3
$$;

-- Makes a text the current one and returns its version. The text that is current already stays,
-- under its number: a request that is sent twice changes nothing.
create function op_set_instructions(
  tenant uuid, new_id uuid, scope uuid, of_kind text, new_text text, new_sha256 text, actor text
) returns int
language plpgsql volatile security definer
set search_path = context_assembly, turnwire, pg_catalog as $$
declare
  newest instructions;
begin
  perform check_tenant(tenant);
  -- Two that set the same scope at once get two versions, one after the other.
  perform pg_advisory_xact_lock(hashtext('context_assembly.instructions'), hashtext(scope::text));
  select * into newest from instructions i
   where i.tenant_id = tenant and i.scope_id = scope and i.kind = of_kind
   order by i.version desc limit 1;
  if newest.is_current and newest.sha256 = new_sha256 then
    return newest.version;
  end if;
  update instructions i set is_current = false
   where i.tenant_id = tenant and i.scope_id = scope and i.kind = of_kind and i.is_current;
  insert into instructions (tenant_id, id, scope_id, kind, version, text, sha256, is_current, set_by,
                            created_at)
  values (tenant, new_id, scope, of_kind, coalesce(newest.version, 0) + 1, new_text, new_sha256, true,
          actor, turnwire.clock());
  return coalesce(newest.version, 0) + 1;
end
$$;

-- What a tenant chose about its payloads. 'none' also deletes what was kept so far, and waits for
-- whoever is keeping something now: what is being written would otherwise outlive the deletion.
create function op_set_capture_posture(
  tenant uuid, new_posture text, per_mille int, actor text
) returns void
language plpgsql volatile security definer
set search_path = context_assembly, turnwire, pg_catalog as $$
begin
  perform check_tenant(tenant);
  perform pg_advisory_xact_lock(hashtext('context_assembly.captures'), hashtext(tenant::text));
  insert into capture_postures (tenant_id, posture, sampled_per_mille, set_by, set_at)
  values (tenant, new_posture, per_mille, actor, turnwire.clock())
  on conflict (tenant_id) do update
     set posture = excluded.posture, sampled_per_mille = excluded.sampled_per_mille,
         set_by = excluded.set_by, set_at = excluded.set_at;
  if new_posture = 'none' then
    delete from captures c where c.tenant_id = tenant;
  end if;
end
$$;

create function op_flag_conversation(
  tenant uuid, conversation uuid, is_flagged boolean, actor text
) returns void
language plpgsql volatile security definer
set search_path = context_assembly, turnwire, pg_catalog as $$
begin
  perform check_tenant(tenant);
  if is_flagged then
    insert into capture_flags (tenant_id, conversation_id, set_by, set_at)
    values (tenant, conversation, actor, turnwire.clock())
    on conflict do nothing;
  else
    delete from capture_flags f where f.tenant_id = tenant and f.conversation_id = conversation;
  end if;
end
$$;

-- A captured payload; of the newest step where none is named. That it was asked for is written
-- down first, found or not.
create function read_capture(
  tenant uuid, turn uuid, of_step int, reader uuid, key_id uuid, new_id uuid, request_id uuid
) returns table (step_no int, cause text, captured_at timestamptz, payload bytea)
language plpgsql volatile security definer
set search_path = context_assembly, turnwire, pg_catalog as $$
#variable_conflict use_column
declare
  kept record;
begin
  perform check_tenant(tenant);
  select s.step_no, c.step_id, c.cause, c.captured_at, c.payload into kept
    from steps s
    join captures c on c.tenant_id = s.tenant_id and c.step_id = s.step_id
   where s.turn_id = turn and s.tenant_id = tenant
     and (of_step is null or s.step_no = of_step)
   order by s.step_no desc limit 1;
  insert into capture_reads (tenant_id, id, step_id, turn_id, reader, key_id, request_id, found, at)
  values (tenant, new_id, kept.step_id, turn, read_capture.reader, read_capture.key_id,
          read_capture.request_id, kept.step_id is not null, turnwire.clock());
  if kept.step_id is not null then
    return query select kept.step_no, kept.cause, kept.captured_at, kept.payload;
  end if;
end
$$;

-- ($1 max_rows)
-- Postures of all tenants and flags of all conversations, for a copy in memory.
create function op_capture_postures(max_rows int)
  returns table (tenant_id uuid, posture text, sampled_per_mille int)
language sql stable security definer set search_path = context_assembly, turnwire, pg_catalog as $$
  select p.tenant_id, p.posture, p.sampled_per_mille from capture_postures p limit $1
$$;

create function op_capture_flags(max_rows int) returns table (tenant_id uuid, conversation_id uuid)
language sql stable security definer set search_path = context_assembly, turnwire, pg_catalog as $$
  select f.tenant_id, f.conversation_id from capture_flags f order by f.set_at desc limit $1
$$;

-- Captures whose plan shows a message, and the right to make more of payloads that hold it.
create function op_forget_message(tenant uuid, conversation uuid, message uuid) returns bigint
language plpgsql volatile security definer
set search_path = context_assembly, turnwire, pg_catalog as $$
declare
  gone bigint;
begin
  perform check_tenant(tenant);
  update payloads y set is_forgotten = true
    from steps s, plans p
   where y.tenant_id = tenant and s.tenant_id = tenant and s.step_id = y.step_id
     and s.conversation_id = conversation and p.tenant_id = tenant and p.step_id = y.step_id
     and p.plan::jsonb -> 'message_ids' ? message::text;
  delete from captures c using plans p
   where c.conversation_id = conversation and (c.tenant_id = tenant) is true
     and p.tenant_id = tenant and p.step_id = c.step_id
     and p.plan::jsonb -> 'message_ids' ? message::text;
  get diagnostics gone = row_count;
  return gone;
end
$$;

-- All captures of a conversation, and the right to make more of its present payloads.
create function op_forget_captures(tenant uuid, conversation uuid) returns bigint
language plpgsql volatile security definer
set search_path = context_assembly, turnwire, pg_catalog as $$
declare
  gone bigint;
begin
  perform check_tenant(tenant);
  update payloads y set is_forgotten = true
    from steps s
   where y.tenant_id = tenant and s.tenant_id = tenant and s.step_id = y.step_id
     and s.conversation_id = conversation;
  delete from captures c where c.conversation_id = conversation and (c.tenant_id = tenant) is true;
  get diagnostics gone = row_count;
  return gone;
end
$$;

-- Everything that was kept about turns of a purged conversation, and what was set for itself.
create function op_forget_turns(tenant uuid, conversation uuid, turns uuid[]) returns bigint
language plpgsql volatile security definer
set search_path = context_assembly, turnwire, pg_catalog as $$
declare
  gone uuid[];
begin
  perform check_tenant(tenant);
  select coalesce(array_agg(s.step_id), '{}') into gone
    from unnest(turns) as named (turn_id)
    join steps s on s.turn_id = named.turn_id
   where (s.tenant_id = tenant) is true and s.conversation_id = conversation;
  delete from captures c where c.tenant_id = tenant and c.step_id = any (gone);
  delete from payloads y where y.tenant_id = tenant and y.step_id = any (gone);
  delete from plans p where p.tenant_id = tenant and p.step_id = any (gone);
  delete from steps s where s.tenant_id = tenant and s.step_id = any (gone);
  delete from capture_flags f where f.tenant_id = tenant and f.conversation_id = conversation;
  delete from instructions i
   where i.scope_id = conversation and (i.tenant_id = tenant) is true and conversation <> tenant;
  return cardinality(gone);
end
$$;

-- ($1 keep_s, $2 max_rows)
create function op_expire_capture_reads(keep_s double precision, max_rows int) returns bigint
language sql volatile security definer set search_path = context_assembly, turnwire, pg_catalog as $$
  with old as (
    select r.tenant_id, r.id from capture_reads r
     where r.at < turnwire.clock() - make_interval(secs => $1)
     order by r.at limit $2
  ), gone as (
    delete from capture_reads r using old
     where r.tenant_id = old.tenant_id and r.id = old.id returning 1
  )
  select count(*) from gone
$$;

-- ($1 max_rows)
-- Captures of tenants that keep none: made by a transaction that had not seen the choice yet.
create function op_expire_vetoed_captures(max_rows int) returns bigint
language sql volatile security definer set search_path = context_assembly, turnwire, pg_catalog as $$
  with unwanted as (
    select c.tenant_id, c.step_id from capture_postures p
      join captures c on c.tenant_id = p.tenant_id
     where p.posture = 'none' limit $1
  ), gone as (
    delete from captures c using unwanted u
     where c.tenant_id = u.tenant_id and c.step_id = u.step_id returning 1
  )
  select count(*) from gone
$$;
reset role;
set local search_path = context_assembly, turnwire, pg_catalog;

alter function check_tenant(uuid) owner to context_assembly_maint;
alter function instructions_v1(uuid[], uuid[], text[], int[]) owner to context_assembly_reader;
alter function longest_instructions_v1(uuid, text, int) owner to context_assembly_reader;
alter function op_set_instructions(uuid, uuid, uuid, text, text, text, text) owner to context_assembly_maint;
alter function op_set_capture_posture(uuid, text, int, text) owner to context_assembly_maint;
alter function op_flag_conversation(uuid, uuid, boolean, text) owner to context_assembly_maint;
alter function read_capture(uuid, uuid, int, uuid, uuid, uuid, uuid) owner to context_assembly_maint;
alter function op_capture_postures(int) owner to context_assembly_maint;
alter function op_capture_flags(int) owner to context_assembly_maint;
alter function op_forget_message(uuid, uuid, uuid) owner to context_assembly_maint;
alter function op_forget_captures(uuid, uuid) owner to context_assembly_maint;
alter function op_forget_turns(uuid, uuid, uuid[]) owner to context_assembly_maint;
alter function op_expire_capture_reads(double precision, int) owner to context_assembly_maint;
alter function op_expire_vetoed_captures(int) owner to context_assembly_maint;

revoke all on function
  check_tenant(uuid),
  instructions_v1(uuid[], uuid[], text[], int[]),
  longest_instructions_v1(uuid, text, int),
  op_set_instructions(uuid, uuid, uuid, text, text, text, text),
  op_set_capture_posture(uuid, text, int, text),
  op_flag_conversation(uuid, uuid, boolean, text),
  read_capture(uuid, uuid, int, uuid, uuid, uuid, uuid),
  op_capture_postures(int),
  op_capture_flags(int),
  op_forget_message(uuid, uuid, uuid),
  op_forget_captures(uuid, uuid),
  op_forget_turns(uuid, uuid, uuid[]),
  op_expire_capture_reads(double precision, int),
  op_expire_vetoed_captures(int)
from public;

grant execute on function
  instructions_v1(uuid[], uuid[], text[], int[]),
  longest_instructions_v1(uuid, text, int),
  op_set_instructions(uuid, uuid, uuid, text, text, text, text),
  op_set_capture_posture(uuid, text, int, text),
  op_flag_conversation(uuid, uuid, boolean, text)
to turnwire_frontend_gateway, turnwire_ops;
grant execute on function read_capture(uuid, uuid, int, uuid, uuid, uuid, uuid)
  to turnwire_frontend_gateway;
grant execute on function
  op_capture_postures(int),
  op_capture_flags(int),
  op_forget_message(uuid, uuid, uuid),
  op_forget_captures(uuid, uuid),
  op_forget_turns(uuid, uuid, uuid[]),
  op_expire_capture_reads(double precision, int),
  op_expire_vetoed_captures(int)
to turnwire_context_assembly;
