-- Statements of ingestion. Every one is set-based: arrays are parallel, element i is one row.
-- Order in a transaction: lock the conversations, read, decide in core/, write.
--
-- Rows are looked up by key, whatever the planner believes. It expects next to nothing behind a row
-- policy and keeps the plan it made while a table was small, and would read whole tables for ever.
-- So reads go through a lateral subquery with a limit, and the lists of writes have a limit that
-- drops nothing (their own length) but makes them look shorter than any table.

-- name: now
select turnwire.clock() as now;

-- name: lock_creations
-- A conversation that may be about to exist has no row to lock. Sorted, and always before the row
-- locks, so two batches cannot wait for each other.
select pg_advisory_xact_lock(hashtext('ingestion.conversation'), wanted.lock)
  from (select distinct hashtext(id::text) as lock from unnest(%(ids)s::uuid[]) as ids (id) order by 1) as wanted;

-- name: lock_conversations
-- The list comes sorted by id and is walked in its order.
select c.tenant_id, c.id, c.principal_id, c.policy, c.model, c.fingerprint, c.next_seq, c.last_turn_id,
       coalesce(c.branch_id, c.id) as branch_id, c.branch_count, c.deleted_at is not null as is_deleted,
       coalesce(c.purge_at > turnwire.clock(), false) as is_restorable
  from unnest(%(tenants)s::uuid[], %(ids)s::uuid[]) as wanted (tenant_id, id)
 cross join lateral (
   select x.* from conversations x
    where x.tenant_id = wanted.tenant_id and x.id = wanted.id
    limit 1
      for update
 ) as c;

-- name: turns_by_key
select t.tenant_id, t.conversation_id, t.key, t.id, t.fingerprint
  from unnest(%(tenants)s::uuid[], %(conversations)s::uuid[], %(keys)s::text[])
       as wanted (tenant_id, conversation_id, key)
 cross join lateral (
   select x.* from turns x
    where (x.tenant_id = wanted.tenant_id) is true  -- not by the primary key's index
      and x.conversation_id = wanted.conversation_id and x.key = wanted.key
    limit 1
 ) as t;

-- name: open_turns_of
select o.tenant_id, o.conversation_id, o.turn_id, o.branch_id, o.base_seq, o.parent_turn_id,
       o.cancel_at is not null as is_cancelled
  from open_turns o
 where o.conversation_id = any (%(conversations)s::uuid[])
 order by o.conversation_id, o.branch_id, o.position;

-- name: targets
-- What requests are about, one of turn and message each, wherever the message lies. The turn of a
-- message is the one that made it; the question of a turn may be an earlier turn's.
select w.request_id, t.id as turn_id, t.branch_id, t.parent_turn_id, t.status, t.kind, t.seq, t.model,
       coalesce(t.length, 0) as length, t.continues, t.user_message_id, t.assistant_message_id,
       t.answer_deleted_at is not null as is_answer_deleted,
       q.branch_id as question_branch_id, q.seq as question_seq, q.parent_turn_id as question_parent_id,
       q.deleted_at is not null as is_question_deleted,
       m.id as message_id, m.role as message_role, m.seq as message_seq,
       m.branch_id as message_branch_id, m.deleted_at is not null as is_message_deleted,
       b.last_turn_id as branch_last_turn_id,
       (select o.turn_id from open_turns o
         cross join lateral (
           select x.user_message_id, x.continues from turns x
            where x.tenant_id = o.tenant_id and x.id = o.turn_id limit 1
         ) as u
         where o.conversation_id = w.conversation_id
           and (u.user_message_id = m.id or m.id = any (u.continues))
         limit 1) as message_used_by,
       exists (
         select from unnest(t.continues) as c (id)
           left join lateral (
             (select x.id from messages x
               where x.tenant_id = t.tenant_id and x.id = c.id and x.deleted_at is null limit 1)
             union all
             (select x.id from archived_messages x
               where x.tenant_id = t.tenant_id and x.id = c.id and x.deleted_at is null limit 1)
             limit 1
           ) as left_over on true
          where left_over.id is null
       ) as is_broken
  from unnest(%(requests)s::uuid[], %(tenants)s::uuid[], %(conversations)s::uuid[], %(turns)s::uuid[],
              %(messages)s::uuid[]) as w (request_id, tenant_id, conversation_id, turn_id, message_id)
  left join lateral (
    (select x.id, x.conversation_id, x.turn_id, x.role, x.seq, x.branch_id, x.deleted_at
       from messages x where x.tenant_id = w.tenant_id and x.id = w.message_id limit 1)
    union all
    (select x.id, x.conversation_id, x.turn_id, x.role, x.seq, x.branch_id, x.deleted_at
       from archived_messages x where x.tenant_id = w.tenant_id and x.id = w.message_id limit 1)
    limit 1
  ) m on m.conversation_id = w.conversation_id
 cross join lateral (select coalesce(w.turn_id, m.turn_id) as id offset 0) named  -- a value, not a filter
 cross join lateral (
    select x.* from turns x where x.tenant_id = w.tenant_id and x.id = named.id limit 1
  ) t
  left join lateral (
    select f.branch_id, f.seq, f.deleted_at, a.parent_turn_id
      from (
        (select x.tenant_id, x.turn_id, x.branch_id, x.seq, x.deleted_at from messages x
          where x.tenant_id = w.tenant_id and x.id = t.user_message_id limit 1)
        union all
        (select x.tenant_id, x.turn_id, x.branch_id, x.seq, x.deleted_at from archived_messages x
          where x.tenant_id = w.tenant_id and x.id = t.user_message_id limit 1)
        limit 1
      ) f
     cross join lateral (
       select x.parent_turn_id from turns x
        where x.tenant_id = f.tenant_id and x.id = f.turn_id limit 1
     ) a
  ) q on true
 cross join lateral (
    select x.last_turn_id from branches x
     where x.tenant_id = t.tenant_id and x.conversation_id = t.conversation_id and x.id = t.branch_id
     limit 1
  ) b
 where t.conversation_id = w.conversation_id;

-- name: purged
-- Which of these conversations had rows that are gone for good.
select p.tenant_id, p.conversation_id
  from unnest(%(tenants)s::uuid[], %(conversations)s::uuid[]) as w (tenant_id, conversation_id)
 cross join lateral (
   select x.tenant_id, x.conversation_id from purged_conversations x
    where x.tenant_id = w.tenant_id and x.conversation_id = w.conversation_id limit 1
 ) p;

-- name: insert_conversations
insert into conversations (tenant_id, id, principal_id, title, policy, model, fingerprint, next_seq,
                           created_at, updated_at)
select n.tenant_id, n.id, n.principal_id, n.title, n.policy, n.model, n.fingerprint, 1,
       turnwire.clock(), turnwire.clock()
  from unnest(%(tenants)s::uuid[], %(ids)s::uuid[], %(principals)s::uuid[], %(titles)s::text[],
              %(policies)s::text[], %(models)s::text[], %(fingerprints)s::text[])
       as n (tenant_id, id, principal_id, title, policy, model, fingerprint);

-- name: insert_main_branches
insert into branches (tenant_id, conversation_id, id, kind, created_at)
select n.tenant_id, n.id, n.id, 'main', turnwire.clock()
  from unnest(%(tenants)s::uuid[], %(ids)s::uuid[]) as n (tenant_id, id);

-- name: fork_branches
-- A fork shows of its parent, and of whatever that one shows, what stands below one number.
insert into branches (tenant_id, conversation_id, id, kind, parent_branch_id, segments, below, is_plain,
                      last_turn_id, created_at)
select n.tenant_id, n.conversation_id, n.id, 'sibling', b.id,
       array[n.id] || coalesce(b.segments, array[b.id]),
       array[9223372036854775807] || (
         select array_agg(least(u.x, n.cap) order by u.no)
           from unnest(coalesce(b.below, array[9223372036854775807])) with ordinality u (x, no)),
       false, n.turn_id, turnwire.clock()
  from unnest(%(tenants)s::uuid[], %(conversations)s::uuid[], %(ids)s::uuid[], %(parents)s::uuid[],
              %(caps)s::bigint[], %(turns)s::uuid[])
       as n (tenant_id, conversation_id, id, parent_id, cap, turn_id)
 cross join lateral (
   select x.* from branches x where x.tenant_id = n.tenant_id and x.conversation_id = n.conversation_id
                                and x.id = n.parent_id limit 1
 ) b;

-- name: leave_branches
update branches b set last_turn_id = n.last_turn_id
  from (
    select * from unnest(%(tenants)s::uuid[], %(conversations)s::uuid[], %(ids)s::uuid[],
                         %(last_turns)s::uuid[])
                  as n (tenant_id, conversation_id, id, last_turn_id)
     limit cardinality(%(ids)s::uuid[])
  ) as n
 where b.tenant_id = n.tenant_id and b.conversation_id = n.conversation_id and b.id = n.id;

-- name: insert_turns
-- base_seq, started_at and deadline_at belong to turns that start at once. A list of ids inside a
-- list of rows comes as the text of an array.
insert into turns (tenant_id, id, conversation_id, branch_id, principal_id, parent_turn_id, request_id,
                   key, fingerprint, policy, model, options, status, seq, base_seq, queued_at_position,
                   user_message_id, assistant_message_id, nul_removed, traceparent, created_at,
                   started_at, deadline_at, kind, continues)
select n.tenant_id, n.id, n.conversation_id, n.branch_id, n.principal_id, n.parent_turn_id, n.request_id,
       n.key, n.fingerprint, n.policy, n.model, n.options, 'pending', n.seq,
       case when n.position = 0 then n.base_seq end, n.position, n.user_message_id, n.assistant_message_id,
       n.nul_removed, n.traceparent, turnwire.clock(),
       case when n.position = 0 then turnwire.clock() end,
       case when n.position = 0 then turnwire.clock() + make_interval(secs => %(deadline_s)s) end,
       n.kind, n.continues::uuid[]
  from unnest(%(tenants)s::uuid[], %(ids)s::uuid[], %(conversations)s::uuid[], %(branches)s::uuid[],
              %(principals)s::uuid[], %(parents)s::uuid[], %(requests)s::uuid[], %(keys)s::text[],
              %(fingerprints)s::text[], %(policies)s::text[], %(models)s::text[], %(options)s::jsonb[],
              %(seqs)s::bigint[], %(positions)s::int[], %(user_messages)s::uuid[],
              %(assistant_messages)s::uuid[], %(nul_removed)s::int[], %(traceparents)s::text[],
              %(base_seqs)s::bigint[], %(kinds)s::text[], %(continues)s::text[])
       as n (tenant_id, id, conversation_id, branch_id, principal_id, parent_turn_id, request_id, key,
             fingerprint, policy, model, options, seq, position, user_message_id,
             assistant_message_id, nul_removed, traceparent, base_seq, kind, continues);

-- name: insert_messages
-- In the order given, so that observed_no follows the order of acceptance.
insert into messages (tenant_id, id, conversation_id, branch_id, turn_id, role, seq, status, text, length,
                      said_at, time_zone, created_at, supersedes)
select n.tenant_id, n.id, n.conversation_id, n.branch_id, n.turn_id, n.role, n.seq, n.status, n.text,
       n.length, coalesce(n.said_at, turnwire.clock()), n.time_zone, turnwire.clock(),
       n.supersedes
  from unnest(%(tenants)s::uuid[], %(ids)s::uuid[], %(conversations)s::uuid[], %(branches)s::uuid[],
              %(turns)s::uuid[], %(roles)s::text[], %(seqs)s::bigint[], %(statuses)s::text[],
              %(texts)s::text[], %(lengths)s::int[], %(said)s::timestamptz[], %(time_zones)s::text[],
              %(supersedes)s::uuid[])
       with ordinality as n (tenant_id, id, conversation_id, branch_id, turn_id, role, seq, status,
                             text, length, said_at, time_zone, supersedes, place)
 order by n.place;

-- name: insert_tokens
insert into message_tokens (tenant_id, message_id, tokenizer, tokens)
select n.tenant_id, n.message_id, n.tokenizer, n.tokens
  from unnest(%(tenants)s::uuid[], %(messages)s::uuid[], %(tokenizers)s::text[], %(tokens)s::int[])
       as n (tenant_id, message_id, tokenizer, tokens);

-- name: insert_transitions
insert into transitions (tenant_id, turn_id, status, reason, cause_id, at)
select n.tenant_id, n.turn_id, n.status, n.reason, n.cause_id, turnwire.clock()
  from unnest(%(tenants)s::uuid[], %(turns)s::uuid[], %(statuses)s::text[], %(reasons)s::text[],
              %(causes)s::uuid[]) as n (tenant_id, turn_id, status, reason, cause_id);

-- name: insert_open_turns
-- base_seq: what a turn beside it would see of the branch ends below this number.
insert into open_turns (turn_id, tenant_id, conversation_id, branch_id, state, position, deadline_at,
                        progressed_at, base_seq, parent_turn_id, wait_until)
select n.turn_id, n.tenant_id, n.conversation_id, n.branch_id, 'pending', n.position,
       case when n.position = 0 then turnwire.clock() + make_interval(secs => %(deadline_s)s) end,
       turnwire.clock(), n.base_seq, n.parent_turn_id,
       case when n.is_bounded then turnwire.clock() + make_interval(secs => %(queue_wait_s)s) end
  from unnest(%(turns)s::uuid[], %(tenants)s::uuid[], %(conversations)s::uuid[], %(branches)s::uuid[],
              %(positions)s::int[], %(base_seqs)s::bigint[], %(parents)s::uuid[], %(bounded)s::bool[])
       as n (turn_id, tenant_id, conversation_id, branch_id, position, base_seq, parent_turn_id,
             is_bounded);

-- name: insert_outcomes
insert into request_outcomes (request_id, tenant_id, outcome, conversation_id, turn_id, problem, decided_at)
select n.request_id, n.tenant_id, n.outcome, n.conversation_id, n.turn_id, n.problem, turnwire.clock()
  from unnest(%(requests)s::uuid[], %(tenants)s::uuid[], %(outcomes)s::text[],
              %(conversations)s::uuid[], %(turns)s::uuid[], %(problems)s::jsonb[])
       as n (request_id, tenant_id, outcome, conversation_id, turn_id, problem);

-- name: advance_conversations
update conversations c
   set next_seq = n.next_seq, last_turn_id = n.last_turn_id, updated_at = turnwire.clock()
  from (
    select * from unnest(%(tenants)s::uuid[], %(ids)s::uuid[], %(next_seqs)s::bigint[],
                         %(last_turns)s::uuid[])
                  as n (tenant_id, id, next_seq, last_turn_id)
     limit cardinality(%(ids)s::uuid[])
  ) as n
 where c.tenant_id = n.tenant_id and c.id = n.id;

-- name: change_conversations
-- Title, policy, deletion and the branch that is continued; null leaves what is there.
update conversations c
   set title = coalesce(n.title, c.title), policy = coalesce(n.policy, c.policy),
       branch_id = coalesce(n.branch_id, c.branch_id), branch_count = c.branch_count + n.forks,
       deleted_at = case n.deletion when 'delete' then turnwire.clock()
                                    when 'restore' then null else c.deleted_at end,
       purge_at = case n.deletion when 'delete' then turnwire.clock() + make_interval(secs => %(restore_s)s)
                                  when 'restore' then null else c.purge_at end,
       updated_at = turnwire.clock()
  from (
    select * from unnest(%(tenants)s::uuid[], %(ids)s::uuid[], %(titles)s::text[], %(policies)s::text[],
                         %(branches)s::uuid[], %(forks)s::int[], %(deletions)s::text[])
                  as n (tenant_id, id, title, policy, branch_id, forks, deletion)
     limit cardinality(%(ids)s::uuid[])
  ) as n
 where c.tenant_id = n.tenant_id and c.id = n.id;

-- name: mark_cancelled
-- The first reason stays.
with marked as (
  update open_turns o
     set cancel_reason = coalesce(o.cancel_reason, n.reason),
         cancel_at = coalesce(o.cancel_at, turnwire.clock())
    from (
      select * from unnest(%(turns)s::uuid[], %(reasons)s::text[]) as n (turn_id, reason)
       limit cardinality(%(turns)s::uuid[])
    ) as n
   where o.turn_id = n.turn_id
  returning o.tenant_id, o.turn_id, o.cancel_reason
)
update turns t set cancel_reason = marked.cancel_reason from marked
 where t.tenant_id = marked.tenant_id and t.id = marked.turn_id;

-- name: delete_messages
with named as (
  select * from unnest(%(tenants)s::uuid[], %(ids)s::uuid[]) as n (tenant_id, id)
   limit cardinality(%(ids)s::uuid[])
), gone as (
  update messages m set deleted_at = turnwire.clock() from named n
   where m.tenant_id = n.tenant_id and m.id = n.id and m.deleted_at is null
  returning m.tenant_id, m.turn_id, m.role
), gone_from_archive as (
  update archived_messages m set deleted_at = turnwire.clock() from named n
   where m.tenant_id = n.tenant_id and m.id = n.id and m.deleted_at is null
  returning m.tenant_id, m.turn_id, m.role
)
update turns t set answer_deleted_at = turnwire.clock()
  from (select * from gone union all select * from gone_from_archive) as g
 where g.role = 'assistant' and t.tenant_id = g.tenant_id and t.id = g.turn_id;

-- name: signalled_turns
select t.tenant_id, t.id, t.conversation_id, t.branch_id, t.status, t.seq, t.queued_at_position,
       t.assistant_message_id, t.traceparent, t.created_at
  from unnest(%(tenants)s::uuid[], %(ids)s::uuid[]) as wanted (tenant_id, id)
 cross join lateral (
   select x.* from turns x where x.tenant_id = wanted.tenant_id and x.id = wanted.id limit 1
 ) as t;

-- name: queues
-- The open turns of whole conversations, at most 32 each, with what a turn needs to start. What
-- waits is a new message: it supersedes nothing.
select o.tenant_id, o.conversation_id, o.branch_id, o.turn_id, o.position,
       o.deadline_at is not null as has_started, o.cancel_at is not null as is_cancelled,
       t.request_id, t.seq, t.queued_at_position, t.model, t.options, t.traceparent,
       coalesce(t.base_seq, t.seq) as base_seq, t.user_message_id, t.kind, t.continues,
       null::uuid as supersedes
  from open_turns o
 cross join lateral (
   select x.* from turns x where x.tenant_id = o.tenant_id and x.id = o.turn_id limit 1
 ) as t
 where o.conversation_id = any (%(conversations)s::uuid[])
 order by o.conversation_id, o.branch_id, o.position;

-- name: results
-- The text of finished attempts, where llm_gateway keeps it until the turn has ended.
-- The model tells with which tokenizer the text is counted.
select r.tenant_id, r.turn_id, r.step_id, r.attempt, r.text, t.model
  from llm_gateway.results_v1(%(tenants)s::uuid[], %(steps)s::uuid[], %(attempts)s::int[]) as r
  left join lateral (
    select x.model from turns x where x.tenant_id = r.tenant_id and x.id = r.turn_id limit 1
  ) as t on true;

-- name: end_turns
with changed as (
  update turns t
     set status = e.status, reason = e.reason, length = e.length, sha256 = e.sha256, upto = e.upto,
         usage = e.usage, attempts = greatest(t.attempts, e.attempt), ended_at = turnwire.clock()
    from (
      select * from unnest(%(tenants)s::uuid[], %(ids)s::uuid[], %(statuses)s::text[],
                           %(reasons)s::text[], %(lengths)s::bigint[], %(hashes)s::text[],
                           %(uptos)s::text[], %(usages)s::jsonb[], %(attempts)s::int[])
                    as e (tenant_id, id, status, reason, length, sha256, upto, usage, attempt)
       limit cardinality(%(ids)s::uuid[])
    ) as e
   where t.tenant_id = e.tenant_id and t.id = e.id and t.ended_at is null
  returning 1
)
select changed_exactly(count(*), %(expected)s) from changed;

-- name: commit_results
-- Copies an answer from where it was generated, only if it is still the one whose hash was told.
with changed as (
  update messages m
     set status = e.status, text = e.text, length = e.length
    from (
      select d.tenant_id, d.message_id, d.status, d.length, r.text
        from unnest(%(tenants)s::uuid[], %(messages)s::uuid[], %(steps)s::uuid[], %(attempts)s::int[],
                    %(statuses)s::text[], %(lengths)s::int[], %(hashes)s::text[])
             as d (tenant_id, message_id, step_id, attempt, status, length, sha256)
        join llm_gateway.results_v1(%(tenants)s::uuid[], %(steps)s::uuid[], %(attempts)s::int[]) as r
          on r.tenant_id = d.tenant_id and r.step_id = d.step_id and r.attempt = d.attempt
         and r.sha256 = d.sha256
       limit cardinality(%(messages)s::uuid[])
    ) as e
   where m.tenant_id = e.tenant_id and m.id = e.message_id
  returning 1
)
select changed_exactly(count(*), %(expected)s) from changed;

-- name: commit_texts
-- Answers whose text is known here (what a reaped turn had shown) and those that have none.
with changed as (
  update messages m
     set status = e.status, text = e.text, length = e.length
    from (
      select * from unnest(%(tenants)s::uuid[], %(messages)s::uuid[], %(statuses)s::text[],
                           %(texts)s::text[], %(lengths)s::int[])
                    as e (tenant_id, message_id, status, text, length)
       limit cardinality(%(messages)s::uuid[])
    ) as e
   where m.tenant_id = e.tenant_id and m.id = e.message_id
  returning 1
)
select changed_exactly(count(*), %(expected)s) from changed;

-- name: close_turns
delete from open_turns o
 using (
   select * from unnest(%(ids)s::uuid[])
                 as e (id)
    limit cardinality(%(ids)s::uuid[])
 ) as e where o.turn_id = e.id;

-- name: move_turns
update turns t set status = n.status
  from (
    select * from unnest(%(tenants)s::uuid[], %(ids)s::uuid[], %(statuses)s::text[])
                  as n (tenant_id, id, status)
     limit cardinality(%(ids)s::uuid[])
  ) as n
 where t.tenant_id = n.tenant_id and t.id = n.id;

-- name: move_open_turns
update open_turns o set state = n.status, progressed_at = turnwire.clock()
  from (
    select * from unnest(%(ids)s::uuid[], %(statuses)s::text[])
                  as n (id, status)
     limit cardinality(%(ids)s::uuid[])
  ) as n
 where o.turn_id = n.id;

-- name: advance_queue
update open_turns o set position = n.position
  from (
    select * from unnest(%(ids)s::uuid[], %(positions)s::int[])
                  as n (id, position)
     limit cardinality(%(ids)s::uuid[])
  ) as n
 where o.turn_id = n.id;

-- name: start_turns
update turns t
   set base_seq = t.seq, started_at = turnwire.clock(),
       deadline_at = turnwire.clock() + make_interval(secs => %(deadline_s)s)
  from (
    select * from unnest(%(tenants)s::uuid[], %(ids)s::uuid[])
                  as n (tenant_id, id)
     limit cardinality(%(ids)s::uuid[])
  ) as n
 where t.tenant_id = n.tenant_id and t.id = n.id;

-- name: start_open_turns
update open_turns o
   set deadline_at = turnwire.clock() + make_interval(secs => %(deadline_s)s),
       progressed_at = turnwire.clock()
  from (
    select * from unnest(%(ids)s::uuid[])
                  as n (id)
     limit cardinality(%(ids)s::uuid[])
  ) as n
 where o.turn_id = n.id;

-- name: overdue_turns
-- Turns that every other limit has failed to end.
select o.turn_id, o.tenant_id, o.conversation_id
  from open_turns o
 where o.deadline_at < turnwire.clock() - make_interval(secs => %(grace_s)s)
 order by o.deadline_at
 limit %(max_rows)s;

-- name: cancelled_turns
-- Turns that are to stop: what has not started at once, what runs once its worker has had time to
-- tell its own end. And turns that have waited as long as they may.
select o.turn_id, o.tenant_id, o.conversation_id, o.deadline_at is not null as has_started,
       coalesce(o.cancel_reason, 'queue_timeout') as reason
  from open_turns o
 where (o.cancel_at is not null
        and (o.deadline_at is null
             or o.cancel_at <= turnwire.clock() - make_interval(secs => %(grace_s)s)))
    or (o.deadline_at is null and o.wait_until < turnwire.clock())
 order by o.cancel_at nulls last, o.turn_id
 limit %(max_rows)s;

-- name: unstarted_heads
-- First of their branch and yet not started: an operator ended the turn before them.
select o.turn_id, o.tenant_id, o.conversation_id
  from open_turns o
 where o.position = 0 and o.deadline_at is null and o.cancel_at is null
 order by o.progressed_at
 limit %(max_rows)s;

-- name: partials
select p.tenant_id, p.turn_id, p.attempt, p.upto, p.text
  from llm_gateway.partials_v1(%(tenants)s::uuid[], %(turns)s::uuid[]) as p
 order by p.attempt;

-- name: claim_silent_turns
-- Started, told, and yet nobody planned a step: their turn.started may be lost. Claimed by moving
-- progressed_at, so that two processes tell a turn once per pause.
with silent as (
  select o.turn_id from open_turns o
   where o.deadline_at is not null and o.state = 'pending' and o.cancel_at is null
     and o.progressed_at < turnwire.clock() - make_interval(secs => %(silence_s)s)
   order by o.progressed_at
   limit %(max_rows)s
     for update skip locked
)
update open_turns o set progressed_at = turnwire.clock() from silent
 where o.turn_id = silent.turn_id
returning o.turn_id, o.tenant_id;

-- name: planned_turns
select distinct s.turn_id from context_assembly.steps_v1 as s where s.turn_id = any (%(turns)s::uuid[]);

-- name: started_turns
select t.tenant_id, t.id, t.conversation_id, t.branch_id, t.request_id, t.seq, t.model, t.options,
       t.traceparent, t.started_at, t.deadline_at, t.base_seq, t.user_message_id, t.kind, t.continues,
       case when t.kind = 'edit' then m.supersedes end as supersedes
  from unnest(%(tenants)s::uuid[], %(ids)s::uuid[]) as wanted (tenant_id, id)
 cross join lateral (
   select x.* from turns x where x.tenant_id = wanted.tenant_id and x.id = wanted.id limit 1
 ) as t
  left join lateral (
   select x.supersedes from messages x
    where x.tenant_id = t.tenant_id and x.id = t.user_message_id limit 1
 ) as m on true
 where t.ended_at is null and t.started_at is not null;

-- name: door_keys
select k.id, k.tenant_id, k.revoked_at is not null as is_revoked from frontend_gateway.door_keys_v1 as k;

-- name: count_open_turns
select count(*) as open,
       count(*) filter (where deadline_at < turnwire.clock()) as overdue
  from open_turns;

-- name: uncounted_ends
select e.turn_id from op_uncounted_ends(%(max_rows)s) as e;

-- name: count_ends
select e.status, e.reason, e.lasted_s from op_count_ends(%(max_rows)s) as e;

-- name: purge_outcomes
with old as (
  select o.request_id from request_outcomes o
   where o.decided_at < turnwire.clock() - make_interval(secs => %(keep_s)s)
   order by o.decided_at limit %(max_rows)s
), gone as (
  delete from request_outcomes o using old where o.request_id = old.request_id returning 1
)
select count(*) as purged from gone;

-- name: purge_conversations
select p.tenant_id, p.conversation_id from op_purge_conversations(%(max_rows)s) as p;
