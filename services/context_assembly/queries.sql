-- name: lock_conversations
-- In the order of the hashes, so that two batches never wait for each other. A statement of its
-- own: what is read after it sees everything committed by whoever held the locks before.
select pg_advisory_xact_lock(hashtext('context_assembly.conversation'), locks.hash)
  from (
    select distinct hashtext(asked.conversation) as hash
      from unnest(%(conversations)s::text[]) as asked (conversation)
     order by 1
  ) as locks;

-- name: turns
-- Ids alone reach the view's index; the caller compares tenant and conversation.
select t.tenant_id, t.id as turn_id, t.conversation_id, t.branch_id, t.status, t.reason,
       t.cancel_reason,
       (select json_agg(json_build_object(
                 'kind', i.kind, 'version', i.version, 'text', i.text,
                 'scope', case when i.scope_id = i.tenant_id then 'tenant' else 'conversation' end))
          from instructions i
         where (i.tenant_id = t.tenant_id) is true
           and i.scope_id in (t.tenant_id, t.conversation_id) and i.is_current) as instructions
  from ingestion.turns_v1 t
 where t.id = any(%(turns)s::uuid[]);

-- name: known_steps
select s.tenant_id, s.step_id
  from unnest(%(tenants)s::uuid[], %(steps)s::uuid[]) as asked (tenant_id, step_id)
  join steps s on s.tenant_id = asked.tenant_id and s.step_id = asked.step_id;

-- name: history
-- One page for each branch asked, newest first; arrays are parallel.
select h.branch_id, h.message_id, h.turn_id, h.seq, h.role, h.status, h.tokens,
       h.length, h.said_at, h.short_text, h.supersedes
  from ingestion.history_v1(
         %(tenants)s::uuid[], %(conversations)s::uuid[], %(branches)s::uuid[],
         %(before_seqs)s::bigint[], %(tokenizers)s::text[], %(max_rows)s::int) as h;

-- name: texts
select x.tenant_id, x.message_id, x.text
  from ingestion.message_texts_v1(%(tenants)b::uuid[], %(messages)b::uuid[]) as x;

-- name: counted
select k.tenant_id, k.sha256, k.tokenizer, k.tokens
  from unnest(%(tenants)s::uuid[], %(hashes)b::bytea[], %(tokenizers)s::text[])
       as asked (tenant_id, sha256, tokenizer)
  join token_counts k on k.tenant_id = asked.tenant_id and k.sha256 = asked.sha256
                     and k.tokenizer = asked.tokenizer;

-- name: remember_counts
insert into token_counts (tenant_id, sha256, tokenizer, tokens, counted_at)
select k.tenant_id, k.sha256, k.tokenizer, k.tokens, turnwire.clock()
  from unnest(%(tenants)s::uuid[], %(hashes)b::bytea[], %(tokenizers)s::text[], %(tokens)s::int[])
       as k (tenant_id, sha256, tokenizer, tokens)
    on conflict do nothing;

-- name: insert_steps
-- Arrays of texts and bytes travel in binary (b): as text every quote in them is escaped twice,
-- which costs milliseconds for a long plan.
insert into steps (tenant_id, step_id, turn_id, step_no, conversation_id, branch_id, seq, model,
                   state, reason, invariant, deadline_at, event_id, event, told_at, created_at)
select s.tenant_id, s.step_id, s.turn_id, s.step_no, s.conversation_id, s.branch_id, s.seq, s.model,
       s.state, s.reason, s.invariant, s.deadline_at, s.event_id, s.event,
       turnwire.clock(), turnwire.clock()
  from unnest(%(tenants)s::uuid[], %(steps)s::uuid[], %(turns)s::uuid[], %(step_nos)s::int[],
              %(conversations)s::uuid[], %(branches)s::uuid[], %(seqs)s::bigint[],
              %(models)s::text[], %(states)s::text[], %(reasons)s::text[], %(invariants)s::text[],
              %(deadlines)s::timestamptz[], %(event_ids)s::uuid[], %(events)b::bytea[])
       as s (tenant_id, step_id, turn_id, step_no, conversation_id, branch_id, seq, model, state,
             reason, invariant, deadline_at, event_id, event);

-- name: insert_plans
insert into plans (tenant_id, step_id, turn_id, step_no, plan, created_at)
select p.tenant_id, p.step_id, p.turn_id, p.step_no, p.plan::json, turnwire.clock()
  from unnest(%(tenants)s::uuid[], %(steps)s::uuid[], %(turns)s::uuid[], %(step_nos)s::int[],
              %(plans)b::text[]) as p (tenant_id, step_id, turn_id, step_no, plan);

-- name: insert_payloads
insert into payloads (tenant_id, step_id, turn_id, payload, created_at)
select p.tenant_id, p.step_id, p.turn_id, p.payload, turnwire.clock()
  from unnest(%(tenants)s::uuid[], %(steps)s::uuid[], %(turns)s::uuid[], %(payloads)b::bytea[])
       as p (tenant_id, step_id, turn_id, payload);

-- name: lock_captures
-- Before captures are made: whoever chooses to keep none waits until they are there and deletes them,
-- or is waited for. A statement of its own, so that the next one sees what was chosen meanwhile.
select pg_advisory_xact_lock_shared(hashtext('context_assembly.captures'), locks.hash)
  from (
    select distinct hashtext(asked.tenant::text) as hash
      from unnest(%(tenants)s::uuid[]) as asked (tenant)
     order by 1
  ) as locks;

-- name: insert_captures
-- A tenant that wants none has the last word here: copies of its choice may be seconds old.
insert into captures (tenant_id, step_id, turn_id, payload, cause, captured_at, conversation_id)
select c.tenant_id, c.step_id, c.turn_id, c.payload, c.cause, turnwire.clock(), c.conversation_id
  from unnest(%(tenants)s::uuid[], %(steps)s::uuid[], %(turns)s::uuid[], %(payloads)b::bytea[],
              %(causes)s::text[], %(conversations)s::uuid[])
       as c (tenant_id, step_id, turn_id, payload, cause, conversation_id)
 where not exists (select from capture_postures p
                    where p.tenant_id = c.tenant_id and p.posture = 'none')
    on conflict do nothing;

-- name: capture_payloads
-- Payloads of ended turns that the capture posture keeps; the originals are deleted right after.
-- Not of a tenant that wants none, nor of what holds a message that was deleted meanwhile.
insert into captures (tenant_id, step_id, turn_id, payload, cause, captured_at, conversation_id)
select p.tenant_id, p.step_id, p.turn_id, p.payload, kept.cause, turnwire.clock(), s.conversation_id
  from unnest(%(tenants)s::uuid[], %(turns)s::uuid[], %(causes)s::text[])
       as kept (tenant_id, turn_id, cause)
  join payloads p on p.tenant_id = kept.tenant_id and p.turn_id = kept.turn_id
  join steps s on s.tenant_id = p.tenant_id and s.step_id = p.step_id
 where not p.is_forgotten
   and not exists (select from capture_postures x
                    where x.tenant_id = kept.tenant_id and x.posture = 'none')
    on conflict do nothing;

-- name: delete_payloads
delete from payloads p
 using unnest(%(tenants)s::uuid[], %(turns)s::uuid[]) as done (tenant_id, turn_id)
 where p.tenant_id = done.tenant_id and p.turn_id = done.turn_id;

-- name: end_steps
-- A refused step stays refused; none of an ended turn is told again.
update steps s
   set state = case when s.state = 'refused' then s.state else 'ended' end,
       event = null, ended_at = turnwire.clock()
  from unnest(%(tenants)s::uuid[], %(turns)s::uuid[]) as done (tenant_id, turn_id)
 where s.tenant_id = done.tenant_id and s.turn_id = done.turn_id and s.ended_at is null;

-- name: silent_steps
-- What became of steps that were told a while ago: whether the turn is open, whether llm_gateway
-- has the step, whether our own record of it still waits for the broker.
select s.tenant_id, s.turn_id, s.step_id,
       exists (select from ingestion.open_turns_v1 o where o.turn_id = s.turn_id) as is_open,
       exists (select from llm_gateway.work_v1 w
                where w.turn_id = s.turn_id and w.step_id = s.step_id) as is_taken,
       exists (select from outbox x where x.event_id = s.event_id) as is_waiting
  from op_silent_steps(%(silent_s)s::float8, %(max_rows)s::int) as s;

-- name: told_events
select s.tenant_id, s.step_id, s.conversation_id, s.state, s.event
  from unnest(%(tenants)s::uuid[], %(steps)s::uuid[]) as asked (tenant_id, step_id)
  join steps s on s.tenant_id = asked.tenant_id and s.step_id = asked.step_id
 where s.event is not null;

-- name: mark_told
update steps s set told_at = turnwire.clock()
  from unnest(%(tenants)s::uuid[], %(steps)s::uuid[]) as told (tenant_id, step_id)
 where s.tenant_id = told.tenant_id and s.step_id = told.step_id and s.event is not null;

-- name: old_payloads
-- Payloads whose turn ended without our hearing of it.
select p.tenant_id, p.turn_id
  from op_old_payloads(%(older_than_s)s::float8, %(max_rows)s::int) as p
 where not exists (select from ingestion.open_turns_v1 o where o.turn_id = p.turn_id);

-- name: expire_captures
select op_expire_captures(%(keep_s)s::float8, %(max_rows)s::int) as gone;

-- name: expire_token_counts
select op_expire_token_counts(%(keep_s)s::float8, %(max_rows)s::int) as gone;

-- name: purged
select p.tenant_id, p.conversation_id
  from unnest(%(tenants)s::uuid[], %(conversations)s::uuid[]) as asked (tenant_id, conversation_id)
  join ingestion.purged_v1 p on p.tenant_id = asked.tenant_id
                            and p.conversation_id = asked.conversation_id;

-- name: forget_message
select op_forget_message(%(tenant)s::uuid, %(conversation)s::uuid, %(message)s::uuid) as gone;

-- name: forget_captures
select op_forget_captures(%(tenant)s::uuid, %(conversation)s::uuid) as gone;

-- name: forget_turns
select op_forget_turns(%(tenant)s::uuid, %(conversation)s::uuid, %(turns)s::uuid[]) as gone;

-- name: capture_postures
select p.tenant_id, p.posture, p.sampled_per_mille from op_capture_postures(%(max_rows)s::int) as p;

-- name: capture_flags
select f.tenant_id, f.conversation_id from op_capture_flags(%(max_rows)s::int) as f;

-- name: expire_capture_reads
select op_expire_capture_reads(%(keep_s)s::float8, %(max_rows)s::int) as gone;

-- name: expire_vetoed_captures
select op_expire_vetoed_captures(%(max_rows)s::int) as gone;
