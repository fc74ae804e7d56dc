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
    %(tenant)s, %(principal)s, %(after)s, %(before)s, %(descending)s, %(max_rows)s,
    %(query)s);

-- name: messages
select * from ingestion.messages_v1(
    %(tenant)s, %(principal)s, %(conversation)s, %(after)s, %(before)s, %(descending)s, %(branch)s,
    %(max_rows)s);

-- name: branches
select * from ingestion.branches_v1(%(tenant)s, %(principal)s, %(conversation)s);

-- name: turns
-- A barrier view takes lateral conditions into its index, but not a plain join with unnest.
select t.*
  from unnest(%(tenants)s::uuid[], %(ids)s::uuid[]) as wanted (tenant_id, id)
 cross join lateral (
    select v.id, v.tenant_id, v.conversation_id, v.principal_id, v.status, v.reason, v.seq, v.policy,
           v.model, v.length, v.sha256, v.upto, v.usage, v.options,
           v.created_at, v.started_at, v.deadline_at, v.ended_at,
           v.kind, v.user_message_id as question_id, v.branch_id, v.parent_turn_id, v.queue_position,
           v.cancel_reason, v.answer_deleted_at
      from ingestion.shown_turns_v1 v
     where v.tenant_id = wanted.tenant_id and v.id = wanted.id) t;

-- name: answers
select turn_id, text from ingestion.turn_texts_v1(%(tenants)s::uuid[], %(ids)s::uuid[]);

-- name: checkpoints
select turn_id, attempt, upto, text from llm_gateway.partials_v1(%(tenants)s::uuid[], %(ids)s::uuid[]);

-- name: plans
select step_id, step_no, plan, created_at, invariant
  from context_assembly.plans_v1(%(tenants)s::uuid[], %(ids)s::uuid[])
 order by step_no;

-- name: activity
select conversation_id, is_deleted, turn_id, branch_id, kind, status, reason, seq, queue_position
  from ingestion.conversation_activity_v1(%(tenants)s::uuid[], %(ids)s::uuid[]);

-- name: message_facts
select message_id, conversation_id, branch_id, turn_id, seq, role, status, is_deleted, superseded_by
  from ingestion.message_facts_v1(%(tenants)s::uuid[], %(ids)s::uuid[]);

-- name: message_texts
select message_id, text from ingestion.message_texts_v1(%(tenants)s::uuid[], %(ids)s::uuid[]);

-- name: find_text
select message_id, seq, branch_id
  from ingestion.find_text_v1(%(tenant)s, %(principal)s, %(conversation)s, %(needle)s, %(max_rows)s);

-- name: transitions
select status, reason, at
  from ingestion.turn_transitions_v1(%(tenants)s::uuid[], %(ids)s::uuid[]);

-- name: steps
select step_id, step_no, state, reason, invariant, model, created_at, ended_at
  from context_assembly.turn_steps_v1(%(tenants)s::uuid[], %(ids)s::uuid[]);

-- name: attempts
select step_id, attempt, model, outcome, reason, failure, requests, first_token_ms, duration_ms,
       began_at, ended_at, input_tokens, output_tokens
  from llm_gateway.attempts_v1(%(tenants)s::uuid[], %(ids)s::uuid[]);

-- name: history_facts
select message_id as id, turn_id, seq, role, status, tokens, length, said_at
  from ingestion.history_facts_v1(
       array[%(tenant)s::uuid], array[%(conversation)s::uuid], array[%(branch)s::uuid],
       array[%(below)s::bigint], array[%(tokenizer)s::text], %(max_rows)s);

-- name: history_count
select messages
  from ingestion.history_count_v1(
       array[%(tenant)s::uuid], array[%(conversation)s::uuid], array[%(branch)s::uuid],
       array[%(below)s::bigint], %(max_count)s);

-- name: excerpts
select message_id, excerpt
  from ingestion.message_excerpts_v1(
       %(tenant)s, %(conversation)s, %(messages)s::uuid[], %(max_characters)s);

-- name: instructions
select scope_id, kind, version, text, created_at
  from context_assembly.instructions_v1(
       %(tenants)s::uuid[], %(scopes)s::uuid[], %(kinds)s::text[], %(versions)s::int[]);

-- name: lock_instructions
-- The lock that op_set_instructions takes for the tenant's own texts. Alone, so that the statements
-- after it see what was committed while it waited.
select pg_advisory_xact_lock(
       hashtext('context_assembly.instructions'), hashtext(%(tenant)s::uuid::text));

-- name: longest_instructions
select scope_id, kind, version, text, created_at
  from context_assembly.longest_instructions_v1(%(tenant)s::uuid, %(kind)s::text, %(max_rows)s::int);

-- name: set_instructions
select context_assembly.op_set_instructions(
       %(tenant)s, %(new_id)s, %(scope)s, %(kind)s, %(text)s, %(sha256)s, %(actor)s) as version;

-- name: set_capture_posture
select context_assembly.op_set_capture_posture(%(tenant)s, %(posture)s, %(per_mille)s, %(actor)s);

-- name: flag_conversation
select context_assembly.op_flag_conversation(
       %(tenant)s, %(conversation)s, %(is_flagged)s, %(actor)s);

-- name: read_capture
select step_no, cause, captured_at, payload
  from context_assembly.read_capture(
       %(tenant)s, %(turn)s, %(step)s, %(reader)s, %(key_id)s, %(read_id)s, %(request_id)s);
