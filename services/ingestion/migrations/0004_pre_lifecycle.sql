-- What acts on whole conversations without naming their tenant: the purge, and the archive.
--
-- Owned by ingestion_maint. Each locks the conversation's row before anything else of it, as every
-- acceptance and every end does, so that none of them sees another half done.
set local role ingestion_owner;
set local search_path = ingestion, turnwire, pg_catalog;

-- Deletes the rows of deleted conversations whose time is over, at most max_rows of them, and tells
-- it with the ids of their turns, up to 500 an event. One with an open turn waits until it has ended,
-- one that somebody holds (a restore, say) until the next call. Outcomes hold ids alone and go with
-- their day. What was purged is remembered for 30 days, longer than any record of it is kept.
create function op_purge_conversations(max_rows int) returns table (tenant_id uuid, conversation_id uuid)
language plpgsql volatile security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
#variable_conflict use_column
declare
  due record;
  gone uuid[];
  event_no int;
  event_id uuid;
begin
  delete from purged_conversations p using (
    select x.tenant_id, x.conversation_id from purged_conversations x
     where x.purged_at < turnwire.clock() - interval '30 days'
     order by x.purged_at limit max_rows) old
   where p.tenant_id = old.tenant_id and p.conversation_id = old.conversation_id;
  for due in
    select c.tenant_id, c.id from conversations c
     where c.purge_at < turnwire.clock()
       and not exists (select from open_turns o where o.conversation_id = c.id)
     order by c.purge_at
     limit max_rows
       for update skip locked
  loop
    gone := array(select t.id from turns t
                   where (t.tenant_id = due.tenant_id) is true and t.conversation_id = due.id
                   order by t.seq, t.id);
    delete from message_tokens k using (
      select m.id from messages m
       where (m.tenant_id = due.tenant_id) is true and m.conversation_id = due.id
      union all
      select m.id from archived_messages m
       where (m.tenant_id = due.tenant_id) is true and m.conversation_id = due.id
    ) m where k.tenant_id = due.tenant_id and k.message_id = m.id;
    delete from messages m where (m.tenant_id = due.tenant_id) is true and m.conversation_id = due.id;
    delete from archived_messages m
     where (m.tenant_id = due.tenant_id) is true and m.conversation_id = due.id;
    delete from transitions r where r.tenant_id = due.tenant_id and r.turn_id = any (gone);
    delete from turns t where (t.tenant_id = due.tenant_id) is true and t.conversation_id = due.id;
    delete from branches b where b.tenant_id = due.tenant_id and b.conversation_id = due.id;
    delete from conversations c where c.tenant_id = due.tenant_id and c.id = due.id;
    insert into purged_conversations (tenant_id, conversation_id, purged_at)
    values (due.tenant_id, due.id, turnwire.clock());
    -- At least one event: others keep things of a conversation that never had a turn.
    for event_no in 0 .. greatest(cardinality(gone) - 1, 0) / 500 loop
      -- A conversation is purged once, so the number names this event; SQL makes no ids.
      event_id := md5('purged:' || due.id || ':' || event_no)::uuid;
      insert into outbox (bucket, topic, key, event_id, type, headers, payload, created_at)
      values (
        bucket_of(due.id::text), 'turn.events', due.id::text, event_id, 'conversation.purged',
        jsonb_build_object('ce_id', event_id, 'ce_type', 'conversation.purged',
                           'ce_source', 'ingestion', 'event-version', '1'),
        convert_to(jsonb_build_object(
          'id', event_id, 'type', 'conversation.purged', 'version', 1, 'source', 'ingestion',
          'tenant_id', due.tenant_id, 'conversation_id', due.id,
          'occurred_at', turnwire.clock(), 'correlation_id', due.id, 'causation_id', null,
          'traceparent', null, 'replay', false,
          'data', jsonb_build_object(
            'turn_ids', to_jsonb(gone[event_no * 500 + 1 : event_no * 500 + 500]))
        )::text, 'UTF8'),
        turnwire.clock());
    end loop;
    tenant_id := due.tenant_id;
    conversation_id := due.id;
    return next;
  end loop;
end
$$;

-- Moves the messages of a conversation below a number to the archive; how many. Raises TW002 while
-- a turn is open whose question or answer is below it, since its end would not find its answer.
create function op_archive(conversation uuid, below bigint, actor text) returns bigint
language plpgsql volatile security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
#variable_conflict use_column
declare
  found_in uuid;
  part bigint;
  moved bigint := 0;
begin
  if actor = '' then
    raise exception 'an archiving names who wants it' using errcode = 'TW002';
  end if;
  -- By message, whose index begins with the conversation; ids of two tenants could be alike.
  for found_in in
    select distinct m.tenant_id from messages m where m.conversation_id = conversation order by 1
  loop
    perform from conversations c where c.tenant_id = found_in and c.id = conversation for update;
    if exists (
      select from open_turns o join turns t on t.tenant_id = o.tenant_id and t.id = o.turn_id
       where o.tenant_id = found_in and o.conversation_id = conversation
         and least(o.base_seq, t.base_seq, t.seq) < below
    ) then
      raise exception 'a turn below % is still open; wait until it has ended, or take a lower number',
        below using errcode = 'TW002';
    end if;
    insert into archived_messages (tenant_id, id, conversation_id, branch_id, turn_id, role, seq, status,
                                   text, length, observed_no, said_at, time_zone, created_at, supersedes,
                                   deleted_at)
    select m.tenant_id, m.id, m.conversation_id, m.branch_id, m.turn_id, m.role, m.seq, m.status,
           m.text, m.length, m.observed_no, m.said_at, m.time_zone, m.created_at, m.supersedes,
           m.deleted_at
      from messages m
     where (m.tenant_id = found_in) is true and m.conversation_id = conversation and m.seq < below;
    get diagnostics part = row_count;
    continue when part = 0;
    delete from messages m
     where (m.tenant_id = found_in) is true and m.conversation_id = conversation and m.seq < below;
    update branches b set is_plain = false
     where b.tenant_id = found_in and b.conversation_id = conversation and b.is_plain;
    insert into operator_actions (tenant_id, action, turn_id, actor, details, at)
    values (found_in, 'conversation.archived', conversation, actor,
            jsonb_build_object('below', below, 'messages', part), turnwire.clock());
    moved := moved + part;
  end loop;
  return moved;
end
$$;

-- Moves all of a conversation back; how many messages. Readers see no difference but speed.
create function op_unarchive(conversation uuid, actor text) returns bigint
language plpgsql volatile security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
#variable_conflict use_column
declare
  found_in uuid;
  part bigint;
  moved bigint := 0;
begin
  if actor = '' then
    raise exception 'a return from the archive names who wants it' using errcode = 'TW002';
  end if;
  for found_in in
    select distinct m.tenant_id from archived_messages m where m.conversation_id = conversation order by 1
  loop
    perform from conversations c where c.tenant_id = found_in and c.id = conversation for update;
    insert into messages (tenant_id, id, conversation_id, branch_id, turn_id, role, seq, status, text,
                          length, observed_no, said_at, time_zone, created_at, supersedes, deleted_at)
    overriding system value
    select m.tenant_id, m.id, m.conversation_id, m.branch_id, m.turn_id, m.role, m.seq, m.status,
           m.text, m.length, m.observed_no, m.said_at, m.time_zone, m.created_at, m.supersedes,
           m.deleted_at
      from archived_messages m
     where (m.tenant_id = found_in) is true and m.conversation_id = conversation;
    get diagnostics part = row_count;
    continue when part = 0;
    delete from archived_messages m
     where (m.tenant_id = found_in) is true and m.conversation_id = conversation;
    update branches b set is_plain = (b.segments is null)
     where b.tenant_id = found_in and b.conversation_id = conversation;
    insert into operator_actions (tenant_id, action, turn_id, actor, details, at)
    values (found_in, 'conversation.unarchived', conversation, actor,
            jsonb_build_object('messages', part), turnwire.clock());
    moved := moved + part;
  end loop;
  return moved;
end
$$;

-- Conversations with messages that may be archived: written longer ago than that, and below every
-- question and answer of an open turn. Walks conversations by key until max_rows are found.
create function op_archivable(older_than_s double precision, max_rows int)
  returns table (tenant_id uuid, conversation_id uuid, below bigint, messages bigint)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  select c.tenant_id, c.id, old.below, old.messages
    from conversations c
   cross join lateral (
     select max(m.seq) + 1 as below, count(*) as messages from messages m
      where (m.tenant_id = c.tenant_id) is true and m.conversation_id = c.id
        and m.created_at < turnwire.clock() - make_interval(secs => $1)
        and m.seq < coalesce((
              select min(least(o.base_seq, t.base_seq, t.seq))
                from open_turns o join turns t on t.tenant_id = o.tenant_id and t.id = o.turn_id
               where o.tenant_id = c.tenant_id and o.conversation_id = c.id), 9223372036854775807)
   ) old
   where c.deleted_at is null and old.messages > 0
   order by c.tenant_id, c.id
   limit $2
$$;
reset role;
set local search_path = ingestion, turnwire, pg_catalog;

alter function op_purge_conversations(int) owner to ingestion_maint;
alter function op_archive(uuid, bigint, text) owner to ingestion_maint;
alter function op_unarchive(uuid, text) owner to ingestion_maint;
alter function op_archivable(double precision, int) owner to ingestion_maint;
revoke all on function
  op_purge_conversations(int), op_archive(uuid, bigint, text), op_unarchive(uuid, text),
  op_archivable(double precision, int)
from public;
grant execute on function op_purge_conversations(int) to turnwire_ingestion;
grant execute on function
  op_archive(uuid, bigint, text), op_unarchive(uuid, text), op_archivable(double precision, int)
to turnwire_ops;
