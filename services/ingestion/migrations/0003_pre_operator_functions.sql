-- What an operator may do to a turn, with its audit row and its event in the same transaction.
--
-- Owned by ingestion_maint: an operator names a turn, not a tenant.
set local role ingestion_owner;
set local search_path = ingestion, turnwire, pg_catalog;

-- The outbox bucket of a key: CRC-32 (ISO 3309) of its UTF-8 bytes, modulo 64. The same number as
-- libs/outbox computes, or events of one conversation would stand in two queues.
create function bucket_of(key text) returns smallint language plpgsql immutable parallel safe
set search_path = ingestion, pg_catalog as $$
declare
  bytes constant bytea := convert_to(key, 'UTF8');
  crc bigint := 4294967295;
begin
  for i in 0 .. octet_length(bytes) - 1 loop
    crc := crc # get_byte(bytes, i);
    for bit in 1 .. 8 loop
      crc := case when crc & 1 = 1 then (crc >> 1) # 3988292384 else crc >> 1 end;
    end loop;
  end loop;
  return ((crc # 4294967295) % 64)::smallint;
end
$$;

-- Ends an open turn without an answer: cancelled for the reasons of a cancel, else failed. Returns
-- the state, or null where the turn is unknown or has ended already. The next turn of its branch
-- is started by the service's sweep within a second or two.
create function op_end_turn(turn uuid, reason text, actor text) returns text
language plpgsql volatile security definer set search_path = ingestion, turnwire, pg_catalog as $$
#variable_conflict use_column
declare
  cancel_reasons constant text[] := array['user', 'no_subscriber', 'replaced', 'conversation_deleted'];
  fail_reasons constant text[] := array['context_too_large', 'invariant', 'provider_refused',
    'provider_unavailable', 'deadline', 'step_deadline', 'idle_timeout', 'queue_timeout', 'dead_lettered',
    'internal'];
  ended open_turns;
  ending text;
  answer uuid;
  trace text;
  -- A turn ends once, so its id names this event; SQL makes no ids.
  event_id constant uuid := md5('operator.turn_ended:' || turn)::uuid;
begin
  ending := case when reason = any (cancel_reasons) then 'cancelled'
                 when reason = any (fail_reasons) then 'failed' end;
  if ending is null or actor = '' then
    raise exception 'no such reason: %; one of: %', reason, cancel_reasons || fail_reasons
      using errcode = 'TW002';
  end if;
  select * into ended from open_turns o where o.turn_id = turn;
  if not found then
    return null;
  end if;
  perform from conversations c
    where c.tenant_id = ended.tenant_id and c.id = ended.conversation_id for update;
  delete from open_turns o where o.turn_id = turn returning * into ended;
  if not found then
    return null;
  end if;
  update turns t set status = ending, reason = op_end_turn.reason, length = 0,
         ended_at = turnwire.clock()
   where t.tenant_id = ended.tenant_id and t.id = turn
  returning t.traceparent, t.assistant_message_id into trace, answer;
  update messages m set status = ending where m.tenant_id = ended.tenant_id and m.id = answer;
  update open_turns o set position = o.position - 1
   where o.conversation_id = ended.conversation_id and o.branch_id = ended.branch_id
     and o.position > ended.position;
  insert into transitions (tenant_id, turn_id, status, reason, cause_id, at)
  values (ended.tenant_id, turn, ending, reason, event_id, turnwire.clock());
  insert into operator_actions (tenant_id, action, turn_id, actor, details, at)
  values (ended.tenant_id, 'turn.ended', turn, actor,
          jsonb_build_object('status', ending, 'reason', reason, 'event_id', event_id),
          turnwire.clock());
  insert into outbox (bucket, topic, key, event_id, type, headers, payload, created_at)
  values (
    bucket_of(ended.conversation_id::text), 'turn.events', ended.conversation_id::text, event_id,
    'turn.ended',
    jsonb_strip_nulls(jsonb_build_object(
      'ce_id', event_id, 'ce_type', 'turn.ended', 'ce_source', 'ingestion', 'event-version', '1',
      'traceparent', trace)),
    convert_to(jsonb_build_object(
      'id', event_id, 'type', 'turn.ended', 'version', 1, 'source', 'ingestion',
      'tenant_id', ended.tenant_id, 'conversation_id', ended.conversation_id,
      'occurred_at', turnwire.clock(), 'correlation_id', turn, 'causation_id', null,
      'traceparent', trace, 'replay', false,
      'data', jsonb_build_object('status', ending, 'reason', reason, 'length', 0, 'usage', null)
    )::text, 'UTF8'),
    turnwire.clock());
  return ending;
end
$$;
reset role;
set local search_path = ingestion, turnwire, pg_catalog;

alter function bucket_of(text) owner to ingestion_maint;
alter function op_end_turn(uuid, text, text) owner to ingestion_maint;
revoke all on function bucket_of(text), op_end_turn(uuid, text, text) from public;
grant execute on function op_end_turn(uuid, text, text) to turnwire_ops;
