-- Conversations, their turns and messages, and what ingestion decided about them.
--
-- Tables of a tenant's data stand under row policies and have keys that begin with tenant_id.
-- Without row policy, because sweeps and polls read them before a tenant is named: open_turns,
-- request_outcomes, and the mechanics (outbox, outbox_dead, inbox, dead_letters).
-- Only primary keys begin with tenant_id. A second index that began with it would look as good to the
-- planner while a table is small, and the plan it keeps would then walk all rows of a tenant.
-- No id and no time comes from a column default; messages.observed_no is the one identity here.
set local role ingestion_owner;
set local search_path = ingestion, turnwire, pg_catalog;

create table conversations (
  tenant_id uuid not null,
  id uuid not null,
  principal_id uuid not null,
  title text,
  policy text not null check (policy in ('serialize', 'branch', 'reject', 'queue', 'replace')),
  model text,
  fingerprint text not null,
  next_seq bigint not null check (next_seq >= 1),
  last_turn_id uuid,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (tenant_id, id)
) with (fillfactor = 80);
create index conversations_of_principal on conversations (principal_id, created_at, id);
comment on table conversations is
  'One row per conversation; its row lock orders everything that happens in it.';
comment on column conversations.next_seq is 'The number that the next message gets.';

create table branches (
  tenant_id uuid not null,
  conversation_id uuid not null,
  id uuid not null,
  kind text not null check (kind in ('main', 'sibling', 'subtask')),
  created_at timestamptz not null,
  primary key (tenant_id, conversation_id, id),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id)
);
comment on table branches is 'Lines of a conversation; the main one has the conversation''s own id.';

create table turns (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  branch_id uuid not null,
  principal_id uuid not null,
  parent_turn_id uuid,
  request_id uuid not null,
  key text not null,
  fingerprint text not null,
  policy text not null,
  model text,
  options jsonb,
  status text not null check (status in
    ('pending', 'generating', 'waiting_for_tool', 'completed', 'partial', 'failed', 'cancelled')),
  reason text,
  seq bigint not null,
  base_seq bigint,
  queued_at_position int not null check (queued_at_position >= 0),
  user_message_id uuid not null,
  assistant_message_id uuid not null,
  attempts int not null default 0,
  length bigint,
  sha256 text,
  upto text,
  usage jsonb,
  nul_removed int not null,
  traceparent text,
  created_at timestamptz not null,
  started_at timestamptz,
  deadline_at timestamptz,
  ended_at timestamptz,
  primary key (tenant_id, id),
  unique (conversation_id, key, tenant_id),
  foreign key (tenant_id, conversation_id, branch_id)
    references branches (tenant_id, conversation_id, id),
  check ((ended_at is not null) = (status in ('completed', 'partial', 'failed', 'cancelled'))),
  check ((started_at is null) = (base_seq is null) and (started_at is null) = (deadline_at is null))
) with (fillfactor = 70);
create unique index turns_by_id on turns (id);
comment on table turns is 'One row per accepted request for an answer; its state and its one end.';
comment on column turns.seq is 'Of the user message; the assistant message has the next number.';
comment on column turns.base_seq is 'History of the turn is what stands below; set when it starts.';
comment on column turns.queued_at_position is
  'Place in the queue at acceptance; stream entries about the queue are numbered from it.';

create table messages (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  branch_id uuid not null,
  turn_id uuid not null,
  role text not null check (role in ('user', 'assistant')),
  seq bigint not null,
  status text not null check (status in ('pending', 'completed', 'partial', 'failed', 'cancelled')),
  text text,
  length int not null check (length >= 0),
  observed_no bigint generated always as identity,
  said_at timestamptz not null,
  time_zone text,
  created_at timestamptz not null,
  primary key (tenant_id, id),
  unique (conversation_id, seq, tenant_id),
  foreign key (tenant_id, turn_id) references turns (tenant_id, id)
) with (fillfactor = 80);
-- What history may show; repeated literally in history_v1, or the index cannot serve it.
create index messages_history on messages (conversation_id, branch_id, seq desc)
  where role = 'user' or (status in ('completed', 'partial', 'cancelled') and length > 0);
comment on column messages.observed_no is
  'Total order over all conversations of when a message was observed; never a cursor.';
comment on column messages.length is 'Bytes of the text in UTF-8.';

create table message_tokens (
  tenant_id uuid not null,
  message_id uuid not null,
  tokenizer text not null,
  tokens int not null check (tokens >= 0),
  primary key (tenant_id, message_id, tokenizer),
  foreign key (tenant_id, message_id) references messages (tenant_id, id)
);
comment on table message_tokens is 'Counted once, when the message is written.';

create table transitions (
  tenant_id uuid not null,
  turn_id uuid not null,
  status text not null,
  reason text,
  cause_id uuid not null,
  at timestamptz not null,
  primary key (tenant_id, turn_id, status, cause_id),
  foreign key (tenant_id, turn_id) references turns (tenant_id, id)
);
comment on table transitions is 'Every state a turn entered, and the event that moved it there.';

create table operator_actions (
  tenant_id uuid not null,
  action text not null,
  turn_id uuid not null,
  actor text not null,
  details jsonb not null,
  at timestamptz not null,
  primary key (tenant_id, action, turn_id)
);
comment on table operator_actions is 'Audit of what operators did here.';

-- Written with the acceptance and deleted with the end, so sweeps never look at finished turns.
create table open_turns (
  turn_id uuid primary key,
  tenant_id uuid not null,
  conversation_id uuid not null,
  branch_id uuid not null,
  state text not null check (state in ('pending', 'generating', 'waiting_for_tool')),
  position int not null check (position >= 0),
  deadline_at timestamptz,
  progressed_at timestamptz not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
create index open_turns_of_conversation on open_turns (conversation_id, branch_id, position);
comment on column open_turns.position is '0 runs, others wait; without deadline_at it has not started.';
comment on column open_turns.progressed_at is 'Last move of the turn, or the last time it was told again.';

create table request_outcomes (
  request_id uuid primary key,
  tenant_id uuid not null,
  outcome text not null
    check (outcome in ('accepted', 'replayed', 'conflict', 'rejected', 'not_found')),
  conversation_id uuid not null,
  turn_id uuid,
  problem jsonb,
  decided_at timestamptz not null
);
create index request_outcomes_by_age on request_outcomes (decided_at);
comment on table request_outcomes is 'What front ends answer from; kept for 24 hours.';

-- Makes a write that changed too few rows fail with its transaction, without a round trip to look.
create function changed_exactly(changed bigint, expected int) returns bigint
language plpgsql immutable set search_path = ingestion, pg_catalog as $$
begin
  if changed <> expected then
    raise exception 'a write changed % rows instead of %', changed, expected using errcode = 'TW003';
  end if;
  return changed;
end
$$;
revoke all on function changed_exactly(bigint, int) from public;
grant execute on function changed_exactly(bigint, int) to turnwire_ingestion;

select turnwire.bind_to_tenants('ingestion', 'conversations');
select turnwire.bind_to_tenants('ingestion', 'branches');
select turnwire.bind_to_tenants('ingestion', 'turns');
select turnwire.bind_to_tenants('ingestion', 'messages');
select turnwire.bind_to_tenants('ingestion', 'message_tokens');
select turnwire.bind_to_tenants('ingestion', 'transitions');
select turnwire.bind_to_tenants('ingestion', 'operator_actions');
select turnwire.create_mechanics('ingestion');

grant select, insert, update on conversations, turns, messages to turnwire_ingestion;
grant select, insert on branches, message_tokens, transitions to turnwire_ingestion;
grant select, insert, update, delete on open_turns to turnwire_ingestion;
grant select, insert, delete on request_outcomes to turnwire_ingestion;

grant select on conversations, branches, turns, messages, message_tokens, open_turns, request_outcomes
  to ingestion_reader;

grant select, update on conversations, turns, messages, open_turns to ingestion_maint;
grant delete on open_turns to ingestion_maint;
grant insert on transitions, operator_actions, outbox to ingestion_maint;
reset role;

-- Every table here is read by key. A plan that was made while a table had one page would go on reading
-- all of it until the next analyze.
alter role turnwire_ingestion set enable_seqscan = off;
