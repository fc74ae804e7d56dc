-- Leased model calls: what is to be done, who does it, what came of it.
--
-- Without policy, because sweeps read them before a tenant is named: work, workers, and the mechanics
-- outbox, outbox_dead, inbox, dead_letters. They hold no text. Every table with a tenant's text or
-- figures (results, partials, attempts, usage) is under row policies, its keys begin with tenant_id.
-- No id and no time comes from a column default.
set local role llm_gateway_owner;
set local search_path = llm_gateway, turnwire, pg_catalog;

create table workers (
  worker_id uuid primary key,
  lease_until timestamptz not null
) with (fillfactor = 50);
comment on table workers is 'One lease per process; a worker without a valid one is dead.';

create table work (
  step_id uuid primary key,
  tenant_id uuid not null,
  conversation_id uuid not null,
  turn_id uuid not null,
  lane uuid not null,
  step_no int not null check (step_no >= 1),
  seq bigint not null check (seq >= 1),
  model text not null,
  fingerprint text not null,
  causation_id uuid not null,
  traceparent text,
  deadline_at timestamptz not null,
  state text not null check (state in ('ready', 'running', 'done', 'failed', 'cancelled')),
  base_attempt int not null check (base_attempt >= 0),
  attempt int not null check (attempt >= base_attempt),
  worker_id uuid,
  cancel_reason text,
  cancel_after_s int check (cancel_after_s >= 0),
  deadline_reason text not null default 'deadline',
  run_after timestamptz not null,
  created_at timestamptz not null,
  claimed_at timestamptz,
  progressed_at timestamptz not null,
  event bytea,
  told_at timestamptz,
  check ((worker_id is not null) = (state = 'running')),
  check ((event is null) = (told_at is null))
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
create unique index work_one_running on work (lane) where state = 'running';
create index work_ready on work (run_after, seq) where state = 'ready';
create index work_lane on work (lane, seq) where state in ('ready', 'running');
create index work_running on work (worker_id) where state = 'running';
create index work_of_turn on work (turn_id);
create index work_told on work (told_at) where event is not null;
comment on table work is 'One row per step that was planned; deleted when its turn has ended.';
comment on column work.lane is 'The branch: at most one call of it runs at a time.';
comment on column work.base_attempt is 'Highest attempt of the turn before this step.';
comment on column work.attempt is 'Fencing token; rises with every claim, counts per turn.';
comment on column work.cancel_after_s is
  'How long the call goes on while nobody watches, in seconds; null is until it is done.';
comment on column work.deadline_reason is 'The reason of an end at deadline_at.';
comment on column work.event is 'The record that told the end, to be told again if it is lost.';

create table attempts (
  tenant_id uuid not null,
  turn_id uuid not null,
  step_id uuid not null,
  attempt int not null check (attempt >= 1),
  model text not null,
  outcome text not null check (outcome in ('completed', 'interrupted', 'failed', 'repeated')),
  reason text not null,
  failure text,
  requests int not null check (requests >= 0),
  first_token_ms int,
  duration_ms int,
  ended_at timestamptz not null,
  primary key (tenant_id, step_id, attempt)
);
create index attempts_by_age on attempts (ended_at);
comment on table attempts is 'One row per attempt that is over, and why.';
comment on column attempts.failure is 'Class and code of the last provider failure; never its message.';

create table usage (
  tenant_id uuid not null,
  turn_id uuid not null,
  step_id uuid not null,
  attempt int not null,
  model text not null,
  input_tokens int not null check (input_tokens >= 0),
  output_tokens int not null check (output_tokens >= 0),
  cached_tokens int not null check (cached_tokens >= 0),
  cost_usd double precision,
  estimated boolean not null,
  at timestamptz not null,
  primary key (tenant_id, step_id, attempt)
);
comment on table usage is 'The ledger: one row per attempt that sent a request.';

create table results (
  tenant_id uuid not null,
  step_id uuid not null,
  attempt int not null,
  turn_id uuid not null,
  text text not null,
  length int not null,
  sha256 text not null,
  created_at timestamptz not null,
  primary key (tenant_id, step_id, attempt)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
-- Gone in a minute: compressing it would cost more than the room is worth.
alter table results alter column text set storage external;
create index results_of_turn on results (tenant_id, turn_id);
create index results_by_age on results (created_at);
comment on table results is 'Text of an attempt that is over; deleted when the turn has ended.';

create table partials (
  tenant_id uuid not null,
  turn_id uuid not null,
  step_id uuid not null,
  attempt int not null,
  upto text not null,
  text text not null,
  updated_at timestamptz not null,
  primary key (tenant_id, turn_id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
-- Written anew every second: compressing it would cost more than the room is worth.
alter table partials alter column text set storage external;
create index partials_by_age on partials (updated_at);
comment on table partials is 'Checkpoint of the text of a running attempt; upto is a stream entry.';

select turnwire.bind_to_tenants('llm_gateway', 'attempts');
select turnwire.bind_to_tenants('llm_gateway', 'usage');
select turnwire.bind_to_tenants('llm_gateway', 'results');
select turnwire.bind_to_tenants('llm_gateway', 'partials');
select turnwire.create_mechanics('llm_gateway');

grant select, insert, update, delete on workers, work, partials to turnwire_llm_gateway;
grant select, insert, delete on results to turnwire_llm_gateway;
grant select, insert on attempts, usage to turnwire_llm_gateway;

grant select on work, results, partials to llm_gateway_reader;

grant select, delete on results, partials, attempts to llm_gateway_maint;
reset role;
