-- name: lock_conversations
-- In the order of the hashes, so that two batches never wait for each other in a circle.
select pg_advisory_xact_lock(hashtext('llm_gateway.conversation'), k.hash)
  from (select distinct hashtext(c.id::text) as hash
          from unnest(%(conversation_ids)s::uuid[]) as c (id) order by 1) as k;

-- name: known_turns
-- One row per asked turn; status is null where no turn of that tenant and conversation exists.
-- The limit keeps each look-up on its own index path through the barrier view.
select e.turn_id, t.status
  from unnest(%(tenants)s::uuid[], %(conversation_ids)s::uuid[], %(turn_ids)s::uuid[])
       as e (tenant_id, conversation_id, turn_id)
  left join lateral (
    select x.status from ingestion.turns_v1 x
     where x.tenant_id = e.tenant_id and x.id = e.turn_id and x.conversation_id = e.conversation_id
     limit 1
  ) t on true;

-- name: purged_conversations
-- Of these, those that were purged; asked only where a turn is unknown.
select e.conversation_id
  from unnest(%(tenants)s::uuid[], %(conversation_ids)s::uuid[]) as e (tenant_id, conversation_id)
 cross join lateral (
   select 1 from ingestion.purged_v1 x
    where x.tenant_id = e.tenant_id and x.conversation_id = e.conversation_id
    limit 1
 ) as p;

-- name: accept
-- Decides and writes at once: the statement before has taken the locks, so nothing that is read here
-- changes until the commit. An event of a turn that exists is noted in the inbox; its step becomes
-- work unless it was noted before, the turn has ended or somebody wants it to stop: then ingestion ends
-- it. One row per event comes back: status is null where no turn of that tenant and conversation
-- exists, step_id where there is new work.
with asked as (
  select * from unnest(%(step_ids)s::uuid[], %(tenants)s::uuid[], %(conversation_ids)s::uuid[],
                       %(turn_ids)s::uuid[], %(lanes)s::uuid[], %(step_nos)s::int[], %(seqs)s::bigint[],
                       %(models)s::text[], %(fingerprints)s::text[], %(event_ids)s::uuid[],
                       %(traceparents)s::text[], %(deadlines)s::timestamptz[],
                       %(deadline_reasons)s::text[])
             as e (step_id, tenant_id, conversation_id, turn_id, lane, step_no, seq, model, fingerprint,
                   event_id, traceparent, deadline_at, deadline_reason)
), judged as (
  select e.*, t.status, t.cancel_reason, t.cancel_after_s
    from asked e
    left join lateral (
      select x.status, x.cancel_reason,
             -- A front end of somebody else may have sent anything; an hour is the longest grace.
             case when jsonb_typeof(x.options -> 'cancel_after_s') = 'number'
                  then least(greatest((x.options ->> 'cancel_after_s')::numeric, 0), 3600)::int
             end as cancel_after_s
        from ingestion.turns_v1 x
       where x.tenant_id = e.tenant_id and x.id = e.turn_id and x.conversation_id = e.conversation_id
       limit 1
    ) t on true
), noted as (
  insert into inbox (consumer, event_id, at)
  select %(consumer)s, j.event_id, turnwire.clock() from judged j where j.status is not null
      on conflict do nothing
  returning event_id
), accepted as (
  insert into work (step_id, tenant_id, conversation_id, turn_id, lane, step_no, seq, model, fingerprint,
                    causation_id, traceparent, deadline_at, deadline_reason, cancel_after_s, state,
                    base_attempt, attempt, run_after, created_at, progressed_at)
  select j.step_id, j.tenant_id, j.conversation_id, j.turn_id, j.lane, j.step_no, j.seq, j.model,
         j.fingerprint, j.event_id, j.traceparent, j.deadline_at, j.deadline_reason, j.cancel_after_s,
         'ready', made.attempt, made.attempt, turnwire.clock(), turnwire.clock(), turnwire.clock()
    from judged j
    join noted n on n.event_id = j.event_id
   cross join lateral (
     select coalesce(max(w.attempt), 0) as attempt from work w where w.turn_id = j.turn_id
   ) as made
   where j.status <> all (%(ended_statuses)s::text[]) and j.cancel_reason is null
      on conflict (step_id) do nothing
  returning step_id
)
select j.turn_id, j.status, a.step_id
  from judged j left join accepted a on a.step_id = j.step_id;

-- name: claim_accepted
-- Of these steps, those whose lane is free. The unique index work_one_running decides a race.
with candidate as (
  select w.step_id
    from work w
   where w.step_id = any (%(step_ids)s::uuid[]) and w.state = 'ready' and w.run_after <= turnwire.clock()
     and w.cancel_reason is null
     and not exists (
       select 1 from work p
        where p.lane = w.lane and p.step_id <> w.step_id
          and (p.state = 'running'
               or (p.state = 'ready' and (p.seq, p.step_id) < (w.seq, w.step_id))))
   order by w.run_after, w.seq limit %(room)s
   for update skip locked
)
update work w
   set state = 'running', attempt = w.attempt + 1, worker_id = %(worker_id)s,
       claimed_at = turnwire.clock(), progressed_at = turnwire.clock()
  from candidate c
 where w.step_id = c.step_id
returning w.step_id, w.tenant_id, w.conversation_id, w.turn_id, w.attempt, w.base_attempt, w.model,
          w.fingerprint, w.causation_id, w.traceparent, w.cancel_after_s, w.deadline_reason,
          extract(epoch from w.deadline_at - turnwire.clock())::float8 as left_s;

-- name: claim_ready
with candidate as (
  select w.step_id
    from work w
   where w.state = 'ready' and w.run_after <= turnwire.clock() and w.cancel_reason is null
     and w.deadline_at > turnwire.clock()
     and not exists (
       select 1 from work p
        where p.lane = w.lane and p.step_id <> w.step_id
          and (p.state = 'running'
               or (p.state = 'ready' and (p.seq, p.step_id) < (w.seq, w.step_id))))
   order by w.run_after, w.seq limit %(room)s
   for update skip locked
)
update work w
   set state = 'running', attempt = w.attempt + 1, worker_id = %(worker_id)s,
       claimed_at = turnwire.clock(), progressed_at = turnwire.clock()
  from candidate c
 where w.step_id = c.step_id
returning w.step_id, w.tenant_id, w.conversation_id, w.turn_id, w.attempt, w.base_attempt, w.model,
          w.fingerprint, w.causation_id, w.traceparent, w.cancel_after_s, w.deadline_reason,
          extract(epoch from w.deadline_at - turnwire.clock())::float8 as left_s;

-- name: payloads
select tenant_id, step_id, payload
  from context_assembly.step_payloads_v1(%(tenants)s::uuid[], %(step_ids)s::uuid[]);

-- name: own_running
select step_id, attempt, cancel_reason from work where worker_id = %(worker_id)s and state = 'running';

-- name: claims_of
-- Facts of running rows of one worker, as a claim would have returned them.
select w.step_id, w.tenant_id, w.conversation_id, w.turn_id, w.attempt, w.base_attempt, w.model,
       w.fingerprint, w.causation_id, w.traceparent, w.cancel_after_s, w.deadline_reason,
       extract(epoch from w.deadline_at - turnwire.clock())::float8 as left_s
  from work w
 where w.step_id = any (%(step_ids)s::uuid[]) and w.state = 'running' and w.worker_id = %(worker_id)s;

-- name: finish
-- The fence: a row that another attempt took over, or that its turn's end deleted, is not returned.
update work w
   set state = f.state, worker_id = null, event = f.event,
       told_at = case when f.event is null then null else turnwire.clock() end,
       progressed_at = turnwire.clock()
  from unnest(%(step_ids)s::uuid[], %(attempts)s::int[], %(states)s::text[], %(events)s::bytea[])
       as f (step_id, attempt, state, event)
 where w.step_id = f.step_id and w.attempt = f.attempt and w.state = 'running'
returning w.step_id, w.attempt;

-- name: finish_ready
-- The end of work that never started.
update work w
   set state = f.state, event = f.event, told_at = turnwire.clock(), progressed_at = turnwire.clock()
  from unnest(%(step_ids)s::uuid[], %(attempts)s::int[], %(states)s::text[], %(events)s::bytea[])
       as f (step_id, attempt, state, event)
 where w.step_id = f.step_id and w.attempt = f.attempt and w.state = 'ready'
returning w.step_id, w.attempt;

-- name: requeue
update work w
   set state = 'ready', worker_id = null, run_after = turnwire.clock(), progressed_at = turnwire.clock()
  from unnest(%(step_ids)s::uuid[], %(attempts)s::int[]) as f (step_id, attempt)
 where w.step_id = f.step_id and w.attempt = f.attempt and w.state = 'running'
returning w.step_id, w.attempt;

-- name: record_attempts
insert into attempts (tenant_id, turn_id, step_id, attempt, model, outcome, reason, failure, requests,
                      first_token_ms, duration_ms, ended_at)
select f.*, turnwire.clock()
  from unnest(%(tenants)s::uuid[], %(turn_ids)s::uuid[], %(step_ids)s::uuid[], %(attempts)s::int[],
              %(models)s::text[], %(outcomes)s::text[], %(reasons)s::text[], %(failures)s::text[],
              %(requests)s::int[], %(first_token_ms)s::int[], %(duration_ms)s::int[]) as f
on conflict do nothing;

-- name: record_usage
insert into usage (tenant_id, turn_id, step_id, attempt, model, input_tokens, output_tokens,
                   cached_tokens, cost_usd, estimated, at)
select f.*, turnwire.clock()
  from unnest(%(tenants)s::uuid[], %(turn_ids)s::uuid[], %(step_ids)s::uuid[], %(attempts)s::int[],
              %(models)s::text[], %(inputs)s::int[], %(outputs)s::int[], %(cached)s::int[],
              %(costs)s::float8[], %(estimated)s::boolean[]) as f
on conflict do nothing;

-- name: record_results
insert into results (tenant_id, turn_id, step_id, attempt, text, length, sha256, created_at)
select f.*, turnwire.clock()
  from unnest(%(tenants)s::uuid[], %(turn_ids)s::uuid[], %(step_ids)s::uuid[], %(attempts)s::int[],
              %(texts)s::text[], %(lengths)s::int[], %(sha256s)s::text[]) as f
on conflict do nothing;

-- name: checkpoint
-- Rows that are just being finished or taken over are skipped, not waited for: their text is
-- settled there.
with held as (
  select w.step_id, w.attempt from work w
   where w.step_id = any (%(step_ids)s::uuid[]) and w.state = 'running'
   for share skip locked
)
insert into partials (tenant_id, turn_id, step_id, attempt, upto, text, updated_at)
select c.tenant_id, c.turn_id, c.step_id, c.attempt, c.upto, c.text, turnwire.clock()
  from unnest(%(tenants)s::uuid[], %(turn_ids)s::uuid[], %(step_ids)s::uuid[], %(attempts)s::int[],
              %(uptos)s::text[], %(texts)s::text[])
       as c (tenant_id, turn_id, step_id, attempt, upto, text)
  join held h on h.step_id = c.step_id and h.attempt = c.attempt
on conflict (tenant_id, turn_id) do update
   set step_id = excluded.step_id, attempt = excluded.attempt, upto = excluded.upto,
       text = excluded.text, updated_at = excluded.updated_at
 where partials.attempt <= excluded.attempt
returning step_id;

-- name: request_cancel
update work w
   set cancel_reason = coalesce(w.cancel_reason, e.reason)
  from unnest(%(tenants)s::uuid[], %(turn_ids)s::uuid[], %(reasons)s::text[])
       as e (tenant_id, turn_id, reason)
 where w.turn_id = e.turn_id and w.tenant_id = e.tenant_id and w.state in ('ready', 'running')
returning w.step_id, w.tenant_id, w.conversation_id, w.turn_id, w.attempt, w.causation_id, w.traceparent, w.state,
          w.model, w.cancel_reason;

-- name: delete_work
delete from work w
 using unnest(%(tenants)s::uuid[], %(turn_ids)s::uuid[]) as e (tenant_id, turn_id)
 where w.turn_id = e.turn_id and w.tenant_id = e.tenant_id
returning w.step_id, w.attempt;

-- name: delete_results
delete from results r
 using unnest(%(tenants)s::uuid[], %(turn_ids)s::uuid[]) as e (tenant_id, turn_id)
 where r.tenant_id = e.tenant_id and r.turn_id = e.turn_id;

-- name: delete_partials
delete from partials p
 using unnest(%(tenants)s::uuid[], %(turn_ids)s::uuid[]) as e (tenant_id, turn_id)
 where p.tenant_id = e.tenant_id and p.turn_id = e.turn_id;

-- name: abandoned
-- Running work whose worker is dead, or that is past its deadline in a worker that is not.
select w.step_id, w.tenant_id, w.conversation_id, w.turn_id, w.attempt, w.base_attempt, w.model,
       w.causation_id, w.traceparent, w.cancel_reason, w.deadline_reason, w.worker_id,
       extract(epoch from w.deadline_at - turnwire.clock())::float8 as left_s,
       extract(epoch from turnwire.clock() - w.progressed_at)::float8 as silent_s
  from work w
  left join workers k using (worker_id)
 where w.state = 'running'
   and (k.worker_id is null or k.lease_until < turnwire.clock()
        or w.deadline_at < turnwire.clock() - make_interval(secs => %(grace_s)s))
 order by w.progressed_at limit %(max_rows)s;

-- name: abandoned_own
select w.step_id, w.tenant_id, w.conversation_id, w.turn_id, w.attempt, w.base_attempt, w.model,
       w.causation_id, w.traceparent, w.cancel_reason, w.deadline_reason, w.worker_id,
       extract(epoch from w.deadline_at - turnwire.clock())::float8 as left_s,
       extract(epoch from turnwire.clock() - w.progressed_at)::float8 as silent_s
  from unnest(%(step_ids)s::uuid[], %(attempts)s::int[]) as f (step_id, attempt)
  join work w on w.step_id = f.step_id and w.attempt = f.attempt
 where w.state = 'running' and w.worker_id = %(worker_id)s;

-- name: recovery_facts
-- What recovery needs beside the stream: the checkpoint, and the size of the request.
select f.step_id, p.upto, p.text, length(y.payload) as payload_bytes
  from unnest(%(tenants)s::uuid[], %(turn_ids)s::uuid[], %(step_ids)s::uuid[], %(attempts)s::int[])
       as f (tenant_id, turn_id, step_id, attempt)
  left join partials p
    on p.tenant_id = f.tenant_id and p.turn_id = f.turn_id and p.step_id = f.step_id
   and p.attempt = f.attempt
  left join lateral context_assembly.step_payloads_v1(array[f.tenant_id], array[f.step_id]) y on true;

-- name: late_ready
select w.step_id, w.tenant_id, w.conversation_id, w.turn_id, w.attempt, w.causation_id, w.traceparent, w.state,
       w.model, w.cancel_reason, w.deadline_reason
  from work w
 where w.state = 'ready'
   and (w.deadline_at < turnwire.clock() or w.cancel_reason is not null)
 order by w.deadline_at limit %(max_rows)s;

-- name: untold
-- The end was told, but its turn is still open and silent: the record may be lost. While records
-- still wait for the broker nothing is told again, or an outage would multiply them.
select w.step_id, w.conversation_id, w.event
  from work w
 where w.event is not null and w.told_at < turnwire.clock() - make_interval(secs => %(silent_s)s)
   and exists (
     select 1 from ingestion.open_turns_v1 t
      where t.turn_id = w.turn_id
        and t.progressed_at < turnwire.clock() - make_interval(secs => %(silent_s)s))
   and coalesce((select o.created_at from outbox o order by o.id limit 1), turnwire.clock())
       > turnwire.clock() - make_interval(secs => %(silent_s)s)
 order by w.told_at limit %(max_rows)s
   for update of w skip locked;

-- name: told_again
update work set told_at = turnwire.clock() where step_id = any (%(step_ids)s::uuid[]);

-- name: forget_ended
-- Work whose turn ended without our hearing of it.
delete from work w
 using (
   select x.step_id from work x
    where x.created_at < turnwire.clock() - make_interval(secs => %(keep_s)s)
      and not exists (select 1 from ingestion.open_turns_v1 t where t.turn_id = x.turn_id)
    order by x.created_at limit %(max_rows)s
 ) as old
 where w.step_id = old.step_id
returning w.tenant_id, w.turn_id, w.step_id, w.attempt;

-- name: forget_workers
delete from workers where lease_until < turnwire.clock() - make_interval(secs => %(keep_s)s);

-- name: purge
select op_purge(%(texts_s)s, %(attempts_s)s, %(max_rows)s) as purged;
