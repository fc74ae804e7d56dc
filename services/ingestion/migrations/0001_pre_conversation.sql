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
  branch_id uuid,
  branch_count int not null default 1 check (branch_count >= 1),
  deleted_at timestamptz,
  purge_at timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (tenant_id, id),
  check ((deleted_at is null) = (purge_at is null))
) with (fillfactor = 80);
create index conversations_of_principal on conversations (principal_id, created_at, id);
create index conversations_to_purge on conversations (purge_at) where purge_at is not null;
comment on table conversations is
  'One row per conversation; its row lock orders everything that happens in it.';
comment on column conversations.next_seq is 'The number that the next message gets.';
comment on column conversations.last_turn_id is 'Of the branch that is continued now.';
comment on column conversations.branch_id is
  'The branch that a message without a parent continues; null is the main one.';

create table branches (
  tenant_id uuid not null,
  conversation_id uuid not null,
  id uuid not null,
  kind text not null check (kind in ('main', 'sibling', 'subtask')),
  parent_branch_id uuid,
  segments uuid[],
  below bigint[],
  last_turn_id uuid,
  is_plain boolean not null default true,
  created_at timestamptz not null,
  primary key (tenant_id, conversation_id, id),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id),
  check (cardinality(segments) = cardinality(below) and (segments is null) = (below is null)),
  check (segments is null or not is_plain)
);
comment on table branches is 'Lines of a conversation; the main one has the conversation''s own id.';
comment on column branches.segments is
  'The branch''s own id, then those it grew out of; a message stands on the branch if for some i its '
  'branch is segments[i] and its seq below below[i]. Null is the branch alone, without an upper end.';
comment on column branches.last_turn_id is
  'Set when the conversation turns to another branch; of the branch that is continued now, the '
  'conversation says it.';
comment on column branches.is_plain is
  'All its messages are its own and none is archived, so that its history is one range of an index.';

create table turns (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  branch_id uuid not null,
  principal_id uuid not null,
  parent_turn_id uuid,
  kind text not null default 'message' check (kind in ('message', 'edit', 'regenerate', 'continue')),
  continues uuid[],
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
  cancel_reason text,
  answer_deleted_at timestamptz,
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
comment on column turns.seq is 'The answer has the next number; base_seq is that of the question.';
comment on column turns.base_seq is 'History of the turn is what stands below; set when it starts.';
comment on column turns.user_message_id is
  'The question; of an earlier turn where this one answers again or goes on.';
comment on column turns.continues is 'Unfinished answers that this one goes on from, oldest first.';
comment on column turns.cancel_reason is 'Somebody wants it to stop; the first reason stays.';
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
  supersedes uuid,
  deleted_at timestamptz,
  is_history boolean generated always as (
    deleted_at is null
    and (role = 'user' or (status in ('completed', 'partial', 'cancelled') and length > 0))) stored,
  primary key (tenant_id, id),
  unique (conversation_id, seq, tenant_id)
) with (fillfactor = 80);
create index messages_history on messages (conversation_id, branch_id, seq desc) where is_history;
comment on column messages.is_history is
  'The one place that decides what a plan may show: of the user all, of the assistant what has text; '
  'nothing that was deleted. Whether the turn has ended is asked of open_turns.';
create index messages_superseding on messages (supersedes) where supersedes is not null;
comment on table messages is
  'Written beside their turn and purged beside it. No reference to it: the check of a purged turn '
  'would walk all messages of its tenant, and an archived message could not keep it.';
comment on column messages.supersedes is 'The message that this one was said again for.';
comment on column messages.observed_no is
  'Total order over all conversations of when a message was observed; never a cursor.';
comment on column messages.length is 'Bytes of the text in UTF-8.';

-- Messages older than a boundary that somebody set, with the same rights of their readers. They keep
-- their ids and numbers; no reader sees in which table a message lies.
create table archived_messages (
  like messages including generated including comments,
  primary key (tenant_id, id),
  -- The tenant before the number, so that nothing but the index below gives a branch in its order:
  -- while few conversations are archived, the planner would take them for equal.
  unique (conversation_id, tenant_id, seq)
);
create index archived_messages_history on archived_messages (conversation_id, branch_id, seq desc)
  where is_history;
create index archived_messages_superseding on archived_messages (supersedes)
  where supersedes is not null;
comment on table archived_messages is 'Messages that were moved out of the way; see op_archive.';

create table message_tokens (
  tenant_id uuid not null,
  message_id uuid not null,
  tokenizer text not null,
  tokens int not null check (tokens >= 0),
  primary key (tenant_id, message_id, tokenizer)
);
comment on table message_tokens is
  'Counted once, when the message is written; without a reference, since a message may be archived.';

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

create table purged_conversations (
  tenant_id uuid not null,
  conversation_id uuid not null,
  purged_at timestamptz not null,
  primary key (tenant_id, conversation_id)
);
create index purged_conversations_at on purged_conversations (purged_at);
comment on table purged_conversations is
  'Whose rows are gone for good, so that late news of them is told from news that makes no sense.';

create table operator_actions (
  tenant_id uuid not null,
  action text not null,
  turn_id uuid not null,
  actor text not null,
  details jsonb not null,
  at timestamptz not null,
  primary key (tenant_id, action, turn_id, at)
);
comment on table operator_actions is 'Audit of what operators did here.';
comment on column operator_actions.turn_id is 'The turn, or the conversation, that it was done to.';

-- Written with the acceptance and deleted with the end, so sweeps never look at finished turns.
create table open_turns (
  turn_id uuid primary key,
  tenant_id uuid not null,
  conversation_id uuid not null,
  branch_id uuid not null,
  state text not null check (state in ('pending', 'generating', 'waiting_for_tool')),
  position int not null check (position >= 0),
  deadline_at timestamptz,
  progressed_at timestamptz not null,
  base_seq bigint,
  parent_turn_id uuid,
  wait_until timestamptz,
  cancel_reason text,
  cancel_at timestamptz
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
create index open_turns_of_conversation on open_turns (conversation_id, branch_id, position);
comment on column open_turns.position is '0 runs, others wait; without deadline_at it has not started.';
comment on column open_turns.base_seq is 'As in turns, but known from the acceptance on.';
comment on column open_turns.wait_until is 'When a waiting turn gives up; null waits for ever.';
comment on column open_turns.cancel_at is 'When somebody first wanted it to stop.';
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
select turnwire.bind_to_tenants('ingestion', 'archived_messages');
select turnwire.bind_to_tenants('ingestion', 'message_tokens');
select turnwire.bind_to_tenants('ingestion', 'purged_conversations');
select turnwire.bind_to_tenants('ingestion', 'transitions');
select turnwire.bind_to_tenants('ingestion', 'operator_actions');
select turnwire.create_mechanics('ingestion');

grant select, insert, update on conversations, branches, turns, messages to turnwire_ingestion;
grant select, update on archived_messages to turnwire_ingestion;
grant select, insert on message_tokens, transitions to turnwire_ingestion;
grant select on purged_conversations to turnwire_ingestion;
grant select, insert, update, delete on open_turns to turnwire_ingestion;
grant select, insert, delete on request_outcomes to turnwire_ingestion;

grant select on conversations, branches, turns, messages, archived_messages, message_tokens, open_turns,
  request_outcomes, purged_conversations
to ingestion_reader;

-- Only maintenance deletes what people wrote: the purge does, and moving to the archive and back.
grant select, update, delete on conversations, branches, turns, open_turns to ingestion_maint;
grant select, insert, update, delete on messages, archived_messages to ingestion_maint;
grant select, insert, delete on transitions, purged_conversations to ingestion_maint;
grant select, delete on message_tokens to ingestion_maint;
grant insert on operator_actions, outbox to ingestion_maint;
reset role;

-- Every table here is read by key. A plan that was made while a table had one page would go on reading
-- all of it until the next analyze.
alter role turnwire_ingestion set enable_seqscan = off;
