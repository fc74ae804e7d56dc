-- name: caller_of_key
select id as key_id, tenant_id, principal_id, scopes
  from api_keys
 where hash = %(hash)s and revoked_at is null;

-- name: caller_of_session
select k.id as key_id, k.tenant_id, k.principal_id, k.scopes
  from ui_sessions s
  join api_keys k on k.id = s.key_id
 where s.token_hash = %(hash)s and s.expires_at > turnwire.clock() and k.revoked_at is null;

-- name: open_session
insert into ui_sessions (token_hash, key_id, created_at, expires_at)
values (%(hash)s, %(key_id)s, turnwire.clock(), turnwire.clock() + make_interval(secs => %(lifetime_s)s))
on conflict (token_hash) do nothing;

-- name: close_session
delete from ui_sessions where token_hash = %(hash)s;

-- name: purge_sessions
select purge_ui_sessions(%(max_rows)s) as deleted;

-- name: outcomes
-- The arrays are parallel: one request of one tenant each.
select * from ingestion.request_outcomes_v1(%(tenants)s::uuid[], %(ids)s::uuid[]);

-- name: conversation
select * from ingestion.conversation_v1(%(tenant)s, %(principal)s, %(conversation)s);

-- name: conversations
select * from ingestion.conversations_v1(
    %(tenant)s, %(principal)s, %(after)s, %(before)s, %(descending)s, %(max_rows)s);

-- name: messages
select * from ingestion.messages_v1(
    %(tenant)s, %(principal)s, %(conversation)s, %(after)s, %(before)s, %(descending)s, %(max_rows)s);

-- name: turns
-- A barrier view takes lateral conditions into its index, but not a plain join with unnest.
select t.*
  from unnest(%(tenants)s::uuid[], %(ids)s::uuid[]) as wanted (tenant_id, id)
 cross join lateral (
    select v.id, v.tenant_id, v.conversation_id, v.principal_id, v.status, v.reason, v.seq, v.policy,
           v.model, v.length, v.sha256, v.upto, v.usage, v.options,
           v.created_at, v.started_at, v.deadline_at, v.ended_at
      from ingestion.turns_v1 v
     where v.tenant_id = wanted.tenant_id and v.id = wanted.id) t;

-- name: answers
select turn_id, text from ingestion.turn_texts_v1(%(tenants)s::uuid[], %(ids)s::uuid[]);

-- name: checkpoints
select turn_id, attempt, upto, text from llm_gateway.partials_v1(%(tenants)s::uuid[], %(ids)s::uuid[]);

-- name: plans
select step_id, step_no, plan, created_at
  from context_assembly.plans_v1(%(tenants)s::uuid[], %(ids)s::uuid[])
 order by step_no;
