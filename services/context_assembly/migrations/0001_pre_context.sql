-- Steps of turns, what each shows the model, and the payload until its turn has ended.
--
-- Every table here is a tenant's data under row policies with keys that begin with tenant_id;
-- without policy are the mechanics alone (outbox, outbox_dead, inbox, dead_letters).
-- No id and no time comes from a column default.
set local role context_assembly_owner;
set local search_path = context_assembly, turnwire, pg_catalog;

create table steps (
  tenant_id uuid not null,
  step_id uuid not null,
  turn_id uuid not null,
  step_no int not null check (step_no >= 1),
  conversation_id uuid not null,
  branch_id uuid not null,
  seq bigint not null check (seq >= 1),
  model text not null,
  state text not null check (state in ('planned', 'refused', 'ended')),
  reason text,
  invariant text,
  deadline_at timestamptz not null,
  event_id uuid not null,
  event bytea,
  told_at timestamptz not null,
  created_at timestamptz not null,
  ended_at timestamptz,
  primary key (tenant_id, step_id),
  -- Led by the turn: an index that begins with the tenant could serve a look-up by step as well,
  -- and would read all steps of the tenant for it.
  unique (turn_id, tenant_id, step_no),
  check ((reason is not null) = (state = 'refused') or state = 'ended')
) with (fillfactor = 70);
create index steps_open on steps (told_at) where event is not null;
comment on table steps is 'One row per step of a turn, and whether it may be sent.';
comment on column steps.event is
  'The record that told the step, to be told again if it is lost; null once the turn has ended.';
comment on column steps.told_at is 'When the step was last told; it is told again after a silence.';

create table plans (
  tenant_id uuid not null,
  step_id uuid not null,
  turn_id uuid not null,
  step_no int not null,
  plan json not null,
  created_at timestamptz not null,
  primary key (tenant_id, step_id),
  foreign key (tenant_id, step_id) references steps (tenant_id, step_id)
);
create index plans_of_turn on plans (tenant_id, turn_id, step_no);
comment on table plans is 'What a step shows the model and why: ids, counts and reasons, no text.';
comment on column plans.plan is 'Written once and read rarely, so kept as text (json, not jsonb).';

create table payloads (
  tenant_id uuid not null,
  step_id uuid not null,
  turn_id uuid not null,
  payload bytea not null,
  created_at timestamptz not null,
  is_forgotten boolean not null default false,
  primary key (tenant_id, step_id),
  foreign key (tenant_id, step_id) references steps (tenant_id, step_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
create index payloads_of_turn on payloads (tenant_id, turn_id);
create index payloads_by_age on payloads (created_at);
comment on table payloads is 'The exact bytes for the provider; deleted when the turn has ended.';
comment on column payloads.is_forgotten is
  'A message in it was deleted meanwhile: never captured, however the turn ends.';

create table captures (
  tenant_id uuid not null,
  step_id uuid not null,
  turn_id uuid not null,
  payload bytea not null,
  cause text not null,
  captured_at timestamptz not null,
  conversation_id uuid,
  primary key (tenant_id, step_id)
);
create index captures_of_conversation on captures (conversation_id);
create index captures_by_age on captures (captured_at);
comment on table captures is 'Payloads kept for a while after a failure, or because they were sampled.';

create table token_counts (
  tenant_id uuid not null,
  sha256 bytea not null check (length(sha256) = 32),
  tokenizer text not null,
  tokens int not null check (tokens >= 0),
  counted_at timestamptz not null,
  primary key (tenant_id, sha256, tokenizer)
);
create index token_counts_by_age on token_counts (counted_at);
comment on table token_counts is
  'Tokens of texts in tokenizers their conversation does not use, by hash of the text.';

create table instructions (
  tenant_id uuid not null,
  id uuid not null,
  scope_id uuid not null,
  kind text not null check (kind in ('system_policy', 'workspace')),
  version int not null check (version >= 1),
  text text not null check (octet_length(text) <= 262144),
  sha256 text not null,
  is_current boolean not null,
  set_by text not null,
  created_at timestamptz not null,
  primary key (tenant_id, id),
  -- Led by the scope, for the reason given at steps.
  unique (scope_id, tenant_id, kind, version)
);
create unique index instructions_current on instructions (scope_id, tenant_id, kind) where is_current;
comment on table instructions is
  'What the operator tells every model, version by version; text and version never change.';
comment on column instructions.scope_id is 'The tenant itself, or one of its conversations.';

create table capture_postures (
  tenant_id uuid not null,
  posture text not null check (posture in ('none', 'failures')),
  sampled_per_mille int not null check (sampled_per_mille between 0 and 1000),
  set_by text not null,
  set_at timestamptz not null,
  primary key (tenant_id)
);
comment on table capture_postures is
  'Whose payloads are kept for a while; a tenant without a row has the default of the settings.';

create table capture_flags (
  tenant_id uuid not null,
  conversation_id uuid not null,
  set_by text not null,
  set_at timestamptz not null,
  primary key (tenant_id, conversation_id)
);
comment on table capture_flags is 'Conversations whose payloads are kept although nothing failed.';

create table capture_reads (
  tenant_id uuid not null,
  id uuid not null,
  step_id uuid,
  turn_id uuid not null,
  reader uuid not null,
  key_id uuid,
  request_id uuid,
  found boolean not null,
  at timestamptz not null,
  primary key (tenant_id, id)
);
create index capture_reads_by_age on capture_reads (at);
comment on table capture_reads is 'Who asked for a captured payload, found or not.';

-- A long history makes a plan of 50 kB and a payload like it. The default compression takes most of
-- a millisecond for a plan, lz4 a tenth of it. Servers built without lz4 are small ones: there room
-- is cheaper than the wait.
do $$
begin
  if exists (select from pg_settings
              where name = 'default_toast_compression' and 'lz4' = any (enumvals)) then
    alter table plans alter column plan set compression lz4;
    alter table payloads alter column payload set compression lz4;
  else
    alter table plans alter column plan set storage external;
    alter table payloads alter column payload set storage external;
  end if;
end
$$;

select turnwire.bind_to_tenants('context_assembly', 'steps');
select turnwire.bind_to_tenants('context_assembly', 'plans');
select turnwire.bind_to_tenants('context_assembly', 'payloads');
select turnwire.bind_to_tenants('context_assembly', 'captures');
select turnwire.bind_to_tenants('context_assembly', 'token_counts');
select turnwire.bind_to_tenants('context_assembly', 'instructions');
select turnwire.bind_to_tenants('context_assembly', 'capture_postures');
select turnwire.bind_to_tenants('context_assembly', 'capture_flags');
select turnwire.bind_to_tenants('context_assembly', 'capture_reads');
select turnwire.create_mechanics('context_assembly');

grant select, insert, update on steps to turnwire_context_assembly;
grant select, insert on plans, token_counts to turnwire_context_assembly;
grant select, insert, delete on payloads to turnwire_context_assembly;
grant insert on captures to turnwire_context_assembly;
grant select on instructions, capture_postures to turnwire_context_assembly;

grant select on steps, plans, payloads, instructions to context_assembly_reader;

grant select, delete on steps, plans to context_assembly_maint;
grant select, update, delete on payloads to context_assembly_maint;
grant select, insert, update, delete on instructions, capture_postures, capture_flags
  to context_assembly_maint;
grant select, insert, delete on capture_reads to context_assembly_maint;
grant select, delete on captures, token_counts to context_assembly_maint;
reset role;
