-- What other services may read, each with the rights of its readers.
--
-- Owned by ingestion_reader, which does not own the tables, so the row policies bind: a caller
-- sees rows of the tenants its transaction named, whatever it passes. Arrays of one call are
-- parallel: element i of each belongs to the same wanted row.
--
-- "(tenant_id = x) is true" is the same condition, kept away from the primary key's index, which
-- would serve it alone by walking all rows of a tenant.
--
-- Messages lie in two tables, and which of them is nobody's business: every read here asks both, the
-- archive second, and stops before it where the first had the row.
--
-- Some functions read the head of an index and stop at a LIMIT. The planner cannot know how many
-- rows a row policy lets through, expects next to none, and would rather fetch and sort a whole
-- conversation; so they tell it to keep to the index.
set local role ingestion_owner;
set local search_path = ingestion, turnwire, pg_catalog;

-- What a plan may show, and nothing else reads these two. They stay two: one view of both by union
-- would lose the order of the index and read a whole conversation for its last messages.
create view history_rows as
select tenant_id, id, conversation_id, branch_id, turn_id, role, seq, status, text, length, observed_no,
       said_at, time_zone, created_at, supersedes
  from messages where is_history;

create view archived_history_rows as
select tenant_id, id, conversation_id, branch_id, turn_id, role, seq, status, text, length, observed_no,
       said_at, time_zone, created_at, supersedes
  from archived_messages where is_history;

-- ($1 tenants, $2 conversation_ids, $3 branch_ids, $4 before_seqs, $5 tokenizers, $6 max_rows)
-- The only way to read history: messages on the path of a branch, below before_seq, whose turn has
-- ended. Newest first per wanted row. Touches about max_rows rows however long the conversation is:
-- of a plain branch one range of one index; of a fork, and of a conversation that is archived in
-- part, at most max_rows per stretch of the path and table.
-- A text of up to 2,000 bytes comes along: it stands in the row that is read anyway. A longer one is
-- stored out of line, and is asked for by message_texts_v1 once it is known to be shown.
create function history_v1(
  tenants uuid[], conversation_ids uuid[], branch_ids uuid[], before_seqs bigint[],
  tokenizers text[], max_rows int
) returns table (
  tenant_id uuid, conversation_id uuid, branch_id uuid, message_id uuid, turn_id uuid, seq bigint,
  role text, status text, tokens int, length int, observed_no bigint, said_at timestamptz,
  time_zone text, short_text text, supersedes uuid
)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
  select wanted.tenant_id, wanted.conversation_id, wanted.branch_id, h.id, h.turn_id, h.seq,
         h.role, h.status, k.tokens, h.length, h.observed_no, h.said_at, h.time_zone, h.short_text,
         h.supersedes
    from unnest($1, $2, $3, $4, $5) with ordinality
         as wanted (tenant_id, conversation_id, branch_id, before_seq, tokenizer, no)
    join branches b on b.tenant_id = wanted.tenant_id and b.conversation_id = wanted.conversation_id
                   and b.id = wanted.branch_id and b.kind in ('main', 'sibling')
   cross join lateral (
     (select m.id, m.turn_id, m.seq, m.role, m.status, m.length, m.observed_no, m.said_at, m.time_zone,
             case when m.length <= 2000 then m.text end as short_text, m.supersedes
        from history_rows m
       where b.is_plain
         and (m.tenant_id = wanted.tenant_id) is true
         and m.conversation_id = wanted.conversation_id
         and m.branch_id = wanted.branch_id
         and m.seq < wanted.before_seq
         -- An open turn has a row here and an ended one has none; at most 32 are open.
         and m.turn_id <> all (array(
               select o.turn_id from open_turns o where o.conversation_id = wanted.conversation_id))
       order by m.seq desc
       limit $6)
     union all
     (select m.id, m.turn_id, m.seq, m.role, m.status, m.length, m.observed_no, m.said_at, m.time_zone,
             case when m.length <= 2000 then m.text end as short_text, m.supersedes
        from unnest(coalesce(b.segments, array[b.id]), coalesce(b.below, array[9223372036854775807]))
             as s (branch_id, below)
       cross join lateral (
         (select x.* from history_rows x
           where (x.tenant_id = wanted.tenant_id) is true
             and x.conversation_id = wanted.conversation_id
             and x.branch_id = s.branch_id
             and x.seq < least(s.below, wanted.before_seq)
             and x.turn_id <> all (array(
                   select o.turn_id from open_turns o
                    where o.conversation_id = wanted.conversation_id))
           order by x.seq desc
           limit $6)
         union all
         (select x.* from archived_history_rows x
           where (x.tenant_id = wanted.tenant_id) is true
             and x.conversation_id = wanted.conversation_id
             and x.branch_id = s.branch_id
             and x.seq < least(s.below, wanted.before_seq)
             and x.turn_id <> all (array(
                   select o.turn_id from open_turns o
                    where o.conversation_id = wanted.conversation_id))
           order by x.seq desc
           limit $6)
       ) m
       where not b.is_plain
       order by m.seq desc
       limit $6)
   ) h
    left join lateral (
      select t.tokens from message_tokens t
       where t.tenant_id = wanted.tenant_id and t.message_id = h.id and t.tokenizer = wanted.tokenizer
       limit 1
    ) k on true
   order by wanted.no, h.seq desc
$$;

create function message_texts_v1(tenants uuid[], message_ids uuid[])
  returns table (tenant_id uuid, message_id uuid, role text, text text)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog as $$
  select m.tenant_id, m.id, m.role, m.text
    from unnest($1, $2) as wanted (tenant_id, message_id)
    join lateral (
      (select x.tenant_id, x.id, x.role, x.text, x.deleted_at from messages x
        where x.tenant_id = wanted.tenant_id and x.id = wanted.message_id
        limit 1)
      union all
      (select x.tenant_id, x.id, x.role, x.text, x.deleted_at from archived_messages x
        where x.tenant_id = wanted.tenant_id and x.id = wanted.message_id
        limit 1)
      limit 1
    ) m on m.text is not null and m.deleted_at is null
$$;

-- The answer of a turn; its text is null where somebody deleted it.
create function turn_texts_v1(tenants uuid[], turn_ids uuid[])
  returns table (tenant_id uuid, turn_id uuid, text text, length bigint, sha256 text, upto text)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog as $$
  select t.tenant_id, t.id, case when m.deleted_at is null then coalesce(m.text, '') end,
         coalesce(t.length, 0), t.sha256, t.upto
    from unnest($1, $2) as wanted (tenant_id, turn_id)
    join lateral (
      select x.* from turns x where x.tenant_id = wanted.tenant_id and x.id = wanted.turn_id limit 1
    ) t on true
    join lateral (
      (select y.text, y.deleted_at from messages y
        where y.tenant_id = t.tenant_id and y.id = t.assistant_message_id limit 1)
      union all
      (select y.text, y.deleted_at from archived_messages y
        where y.tenant_id = t.tenant_id and y.id = t.assistant_message_id limit 1)
      limit 1
    ) m on true
$$;

-- The outcome stays readable for 24 hours; turn and conversation are joined as they are now.
-- queue_position is null once the turn has ended.
create function request_outcomes_v1(tenants uuid[], request_ids uuid[])
  returns table (
    request_id uuid, tenant_id uuid, outcome text, conversation_id uuid, turn_id uuid, problem jsonb,
    seq bigint, status text, title text, policy text, created_at timestamptz,
    user_message_id uuid, branch_id uuid, queue_position int, message_id uuid, kind text
  )
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog as $$
  select o.request_id, o.tenant_id, o.outcome, o.conversation_id, o.turn_id, o.problem,
         t.seq, t.status, c.title, c.policy, c.created_at,
         t.user_message_id, t.branch_id, q.position, t.assistant_message_id, t.kind
    from unnest($1, $2) as wanted (tenant_id, request_id)
    join lateral (
      select x.* from request_outcomes x
       where x.request_id = wanted.request_id and x.tenant_id = wanted.tenant_id
         and (select turnwire.tenants()) @> array[x.tenant_id]
       limit 1
    ) o on true
    left join lateral (
      select y.seq, y.status, y.user_message_id, y.branch_id, y.assistant_message_id, y.kind from turns y
       where y.tenant_id = o.tenant_id and y.id = o.turn_id limit 1
    ) t on true
    left join lateral (
      select p.position from open_turns p where p.turn_id = o.turn_id limit 1
    ) q on true
    left join lateral (
      select z.title, z.policy, z.created_at from conversations z
       where z.tenant_id = o.tenant_id and z.id = o.conversation_id
         and o.outcome in ('accepted', 'replayed')
       limit 1
    ) c on true
$$;

-- One row, or none where the conversation is unknown, deleted or somebody else's.
create function conversation_v1(tenant uuid, principal uuid, conversation uuid)
  returns table (
    id uuid, title text, policy text, created_at timestamptz, updated_at timestamptz,
    message_count bigint, branch_id uuid
  )
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog as $$
  select c.id, c.title, c.policy, c.created_at, c.updated_at, c.next_seq - 1,
         coalesce(c.branch_id, c.id)
    from conversations c
   where c.tenant_id = $1 and c.id = $3 and c.principal_id = $2 and c.deleted_at is null
$$;

-- A page of a principal's conversations, oldest first or newest first, as the list shows them.
-- ``after`` and ``before`` are ids in the order of the list; at most one of them may be given, and it
-- may name what was deleted since. ``query`` keeps what has it in the title, whatever the case of the
-- letters and the way they are encoded, by rules that do not depend on the database's locale.
-- Raises TW001 where the cursor is no conversation of this principal.
create function conversations_v1(
  tenant uuid, principal uuid, after uuid, before uuid, descending boolean, max_rows int, query text
) returns table (
  id uuid, title text, policy text, created_at timestamptz, updated_at timestamptz,
  message_count bigint
)
language plpgsql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
declare
  cursor_id constant uuid := coalesce(after, before);
  backwards constant boolean := descending <> (after is null and before is not null);
  needle constant text :=
    casefold(normalize(nullif(query, ''), nfkc) collate pg_catalog.pg_unicode_fast);
  cursor_at timestamptz;
begin
  if cursor_id is not null then
    select c.created_at into cursor_at from conversations c
     where c.tenant_id = tenant and c.id = cursor_id and c.principal_id = principal;
    if not found then
      raise exception 'the cursor names nothing in this list' using errcode = 'TW001';
    end if;
  end if;
  return query
  select page.id, page.title, page.policy, page.created_at, page.updated_at, page.next_seq - 1
    from (
      (select c.* from conversations c
        where not backwards and (c.tenant_id = tenant) is true and c.principal_id = principal
          and c.deleted_at is null
          and (needle is null
               or position(needle in casefold(normalize(c.title, nfkc) collate pg_catalog.pg_unicode_fast)) > 0)
          and (cursor_id is null or (c.created_at, c.id) > (cursor_at, cursor_id))
        order by c.created_at, c.id limit max_rows)
      union all
      (select c.* from conversations c
        where backwards and (c.tenant_id = tenant) is true and c.principal_id = principal
          and c.deleted_at is null
          and (needle is null
               or position(needle in casefold(normalize(c.title, nfkc) collate pg_catalog.pg_unicode_fast)) > 0)
          and (cursor_id is null or (c.created_at, c.id) < (cursor_at, cursor_id))
        order by c.created_at desc, c.id desc limit max_rows)
    ) page
   order by case when descending then page.created_at end desc, case when descending then page.id end desc,
            page.created_at, page.id;
end
$$;

-- A page of the messages on the path of a branch, by seq; null is the branch that is continued now.
-- The cursors work as in conversations_v1. An unknown, deleted or foreign conversation has no rows.
-- Raises TW001 where the cursor is no message on the path, TW004 where the branch is unknown.
create function messages_v1(
  tenant uuid, principal uuid, conversation uuid, after uuid, before uuid, descending boolean,
  branch uuid, max_rows int
) returns table (
  id uuid, role text, content text, seq bigint, status text, reason text, turn_id uuid,
  created_at timestamptz, branch_id uuid, supersedes uuid, kind text, user_message_id uuid
)
language plpgsql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
declare
  cursor_id constant uuid := coalesce(after, before);
  backwards constant boolean := descending <> (after is null and before is not null);
  cursor_seq bigint;
  wanted uuid;
  path uuid[];
  path_below bigint[];
begin
  select coalesce(branch, c.branch_id, c.id) into wanted from conversations c
   where c.tenant_id = tenant and c.id = conversation and c.principal_id = principal
     and c.deleted_at is null;
  if not found then
    return;
  end if;
  select coalesce(b.segments, array[b.id]), coalesce(b.below, array[9223372036854775807])
    into path, path_below from branches b
   where b.tenant_id = tenant and b.conversation_id = conversation and b.id = wanted
     and b.kind in ('main', 'sibling');
  if not found then
    raise exception 'no such branch in this conversation' using errcode = 'TW004';
  end if;
  if cursor_id is not null then
    select m.seq into cursor_seq from (
      select x.seq, x.branch_id from messages x
       where x.tenant_id = tenant and x.id = cursor_id and x.conversation_id = conversation
      union all
      select x.seq, x.branch_id from archived_messages x
       where x.tenant_id = tenant and x.id = cursor_id and x.conversation_id = conversation
    ) m where m.seq < path_below[array_position(path, m.branch_id)];
    if not found then
      raise exception 'the cursor names nothing in this list' using errcode = 'TW001';
    end if;
  end if;
  return query
  with found as (
    (select m.* from messages m
      where not backwards and (m.tenant_id = tenant) is true and m.conversation_id = conversation
        and m.deleted_at is null and m.seq > coalesce(cursor_seq, 0)
        and m.seq < path_below[array_position(path, m.branch_id)]
      order by m.seq limit max_rows)
    union all
    (select m.* from archived_messages m
      where not backwards and m.tenant_id = tenant and m.conversation_id = conversation
        and m.deleted_at is null and m.seq > coalesce(cursor_seq, 0)
        and m.seq < path_below[array_position(path, m.branch_id)]
      order by m.seq limit max_rows)
    union all
    (select m.* from messages m
      where backwards and (m.tenant_id = tenant) is true and m.conversation_id = conversation
        and m.deleted_at is null and m.seq < coalesce(cursor_seq, 9223372036854775807)
        and m.seq < path_below[array_position(path, m.branch_id)]
      order by m.seq desc limit max_rows)
    union all
    (select m.* from archived_messages m
      where backwards and m.tenant_id = tenant and m.conversation_id = conversation
        and m.deleted_at is null and m.seq < coalesce(cursor_seq, 9223372036854775807)
        and m.seq < path_below[array_position(path, m.branch_id)]
      order by m.seq desc limit max_rows)
  ), page as (
    select f.* from found f
     order by case when backwards then f.seq end desc, f.seq
     limit max_rows
  )
  select page.id, page.role, coalesce(page.text, ''), page.seq,
         case when page.role = 'user' then page.status else t.status end,
         case when page.role = 'user' then null else t.reason end,
         page.turn_id, page.created_at, page.branch_id, page.supersedes, t.kind, t.user_message_id
    from page
    join turns t on t.tenant_id = tenant and t.id = page.turn_id
   order by case when descending then page.seq end desc, page.seq;
end
$$;

-- The branches of a conversation, at most 200, oldest first; none where it is unknown, deleted or
-- somebody else's. fork_seq is null of the main branch; of another it is the number below which it
-- shows what its parent shows.
create function branches_v1(tenant uuid, principal uuid, conversation uuid)
  returns table (
    id uuid, kind text, parent_branch_id uuid, fork_seq bigint, is_active boolean,
    first_turn_id uuid, last_turn_id uuid, created_at timestamptz
  )
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  with ends as (
    select t.branch_id, (array_agg(t.id order by t.seq, t.id))[1] as first_turn_id,
           (array_agg(t.id order by t.seq desc, t.id desc))[1] as last_turn_id
      from turns t
     where (t.tenant_id = $1) is true and t.conversation_id = $3
     group by t.branch_id
  )
  select b.id, b.kind, b.parent_branch_id, b.below[2], b.id = coalesce(c.branch_id, c.id),
         e.first_turn_id, e.last_turn_id, b.created_at
    from conversations c
    join branches b on b.tenant_id = c.tenant_id and b.conversation_id = c.id
                   and b.kind in ('main', 'sibling')
    left join ends e on e.branch_id = b.id
   where c.tenant_id = $1 and c.id = $3 and c.principal_id = $2 and c.deleted_at is null
   order by b.created_at, b.id
   limit 200
$$;

-- What goes on in conversations: the turns of the newest 32 answers of each, newest first, so that
-- who asks once a second misses none. One row without a turn where there is no answer yet, and none
-- where the conversation is gone. The caller knows whose they are.
create function conversation_activity_v1(tenants uuid[], conversation_ids uuid[])
  returns table (
    tenant_id uuid, conversation_id uuid, is_deleted boolean, turn_id uuid, branch_id uuid, kind text,
    status text, reason text, seq bigint, queue_position int
  )
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
  select c.tenant_id, c.id, c.deleted_at is not null, t.id, t.branch_id, t.kind, t.status, t.reason,
         t.seq, q.position
    from unnest($1, $2) with ordinality as wanted (tenant_id, conversation_id, no)
   cross join lateral (
     select x.* from conversations x
      where x.tenant_id = wanted.tenant_id and x.id = wanted.conversation_id limit 1
   ) c
    left join lateral (
      select m.turn_id, m.seq from messages m
       where (m.tenant_id = wanted.tenant_id) is true and m.conversation_id = wanted.conversation_id
         and m.role = 'assistant'
       order by m.seq desc
       limit 32
    ) a on true
    left join lateral (
      select x.* from turns x where x.tenant_id = wanted.tenant_id and x.id = a.turn_id limit 1
    ) t on true
    left join lateral (
      select o.position from open_turns o where o.turn_id = a.turn_id limit 1
    ) q on true
   order by wanted.no, a.seq desc
$$;

-- What is known of messages without their text, deleted ones included; tokens_length is what their
-- tokens were counted over: bytes of the text in UTF-8. superseded_by is the newest message that was
-- said instead.
create function message_facts_v1(tenants uuid[], message_ids uuid[])
  returns table (
    tenant_id uuid, message_id uuid, conversation_id uuid, branch_id uuid, turn_id uuid, seq bigint,
    role text, status text, is_deleted boolean, superseded_by uuid, tokens_length int
  )
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  select m.tenant_id, m.id, m.conversation_id, m.branch_id, m.turn_id, m.seq, m.role, m.status,
         m.deleted_at is not null, s.id, m.length
    from unnest($1, $2) as wanted (tenant_id, message_id)
   cross join lateral (
     (select x.* from messages x
       where x.tenant_id = wanted.tenant_id and x.id = wanted.message_id limit 1)
     union all
     (select x.* from archived_messages x
       where x.tenant_id = wanted.tenant_id and x.id = wanted.message_id limit 1)
     limit 1
   ) m
    left join lateral (
      select y.id from (
        select x.id, x.seq from messages x
         where (x.tenant_id = m.tenant_id) is true and x.supersedes = m.id and x.deleted_at is null
        union all
        select x.id, x.seq from archived_messages x
         where (x.tenant_id = m.tenant_id) is true and x.supersedes = m.id and x.deleted_at is null
      ) y
       order by y.seq desc
       limit 1
    ) s on true
$$;

-- Messages of a conversation whose text holds the needle, newest first, on every branch; none where
-- the conversation is unknown, deleted or somebody else's. Reads texts until max_rows are found.
create function find_text_v1(
  tenant uuid, principal uuid, conversation uuid, needle text, max_rows int
) returns table (message_id uuid, seq bigint, branch_id uuid)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
  select f.id, f.seq, f.branch_id
    from conversations c
   cross join lateral (
     (select m.id, m.seq, m.branch_id from messages m
       where (m.tenant_id = $1) is true and m.conversation_id = c.id
         and m.deleted_at is null and position($4 in m.text) > 0
       order by m.seq desc limit $5)
     union all
     (select m.id, m.seq, m.branch_id from archived_messages m
       where m.tenant_id = $1 and m.conversation_id = c.id
         and m.deleted_at is null and position($4 in m.text) > 0
       order by m.seq desc limit $5)
   ) f
   where c.tenant_id = $1 and c.id = $3 and c.principal_id = $2 and c.deleted_at is null
   order by f.seq desc
   limit $5
$$;
reset role;
set local search_path = ingestion, turnwire, pg_catalog;

create view turns_v1 with (security_barrier) as
select tenant_id, id, conversation_id, branch_id, principal_id, status, reason, seq, base_seq,
       user_message_id, assistant_message_id, policy, model, length, sha256, upto, usage, traceparent,
       created_at, started_at, deadline_at, ended_at, options, attempts, kind, parent_turn_id, continues,
       cancel_reason, answer_deleted_at
  from ingestion.turns;

-- Turns as front ends show them: not those of a deleted conversation, which the services still need.
-- Looked up row by row: a join would let the planner read all conversations of a tenant.
create view shown_turns_v1 with (security_barrier) as
select t.tenant_id, t.id, t.conversation_id, t.branch_id, t.principal_id, t.status, t.reason, t.seq,
       t.base_seq, t.user_message_id, t.assistant_message_id, t.policy, t.model, t.length, t.sha256,
       t.upto, t.usage, t.traceparent, t.created_at, t.started_at, t.deadline_at, t.ended_at, t.options,
       t.attempts, t.kind, t.parent_turn_id, t.continues, t.cancel_reason, t.answer_deleted_at,
       (select o.position from ingestion.open_turns o where o.turn_id = t.id) as queue_position
  from ingestion.turns t
 where (select c.deleted_at is null from ingestion.conversations c
         where c.tenant_id = t.tenant_id and c.id = t.conversation_id);

create view open_turns_v1 with (security_barrier) as
select turn_id, tenant_id, conversation_id, branch_id, state, position, deadline_at, progressed_at,
       cancel_reason
  from ingestion.open_turns;

-- Whose late news is dropped instead of being taken for a mistake.
create view purged_v1 with (security_barrier) as
select tenant_id, conversation_id from ingestion.purged_conversations;

alter function history_v1(uuid[], uuid[], uuid[], bigint[], text[], int) owner to ingestion_reader;
alter function message_texts_v1(uuid[], uuid[]) owner to ingestion_reader;
alter function turn_texts_v1(uuid[], uuid[]) owner to ingestion_reader;
alter function request_outcomes_v1(uuid[], uuid[]) owner to ingestion_reader;
alter function conversation_v1(uuid, uuid, uuid) owner to ingestion_reader;
alter function conversations_v1(uuid, uuid, uuid, uuid, boolean, int, text) owner to ingestion_reader;
alter function messages_v1(uuid, uuid, uuid, uuid, uuid, boolean, uuid, int) owner to ingestion_reader;
alter function branches_v1(uuid, uuid, uuid) owner to ingestion_reader;
alter function conversation_activity_v1(uuid[], uuid[]) owner to ingestion_reader;
alter function message_facts_v1(uuid[], uuid[]) owner to ingestion_reader;
alter function find_text_v1(uuid, uuid, uuid, text, int) owner to ingestion_reader;
alter view history_rows owner to ingestion_reader;
alter view archived_history_rows owner to ingestion_reader;
alter view turns_v1 owner to ingestion_reader;
alter view shown_turns_v1 owner to ingestion_reader;
alter view open_turns_v1 owner to ingestion_reader;
alter view purged_v1 owner to ingestion_reader;

revoke all on function
  history_v1(uuid[], uuid[], uuid[], bigint[], text[], int),
  message_texts_v1(uuid[], uuid[]),
  turn_texts_v1(uuid[], uuid[]),
  request_outcomes_v1(uuid[], uuid[]),
  conversation_v1(uuid, uuid, uuid),
  conversations_v1(uuid, uuid, uuid, uuid, boolean, int, text),
  messages_v1(uuid, uuid, uuid, uuid, uuid, boolean, uuid, int),
  branches_v1(uuid, uuid, uuid),
  conversation_activity_v1(uuid[], uuid[]),
  message_facts_v1(uuid[], uuid[]),
  find_text_v1(uuid, uuid, uuid, text, int)
from public;

grant execute on function
  history_v1(uuid[], uuid[], uuid[], bigint[], text[], int), message_texts_v1(uuid[], uuid[])
to turnwire_context_assembly;
grant execute on function
  message_texts_v1(uuid[], uuid[]),
  turn_texts_v1(uuid[], uuid[]),
  request_outcomes_v1(uuid[], uuid[]),
  conversation_v1(uuid, uuid, uuid),
  conversations_v1(uuid, uuid, uuid, uuid, boolean, int, text),
  messages_v1(uuid, uuid, uuid, uuid, uuid, boolean, uuid, int),
  branches_v1(uuid, uuid, uuid),
  conversation_activity_v1(uuid[], uuid[]),
  message_facts_v1(uuid[], uuid[]),
  find_text_v1(uuid, uuid, uuid, text, int)
to turnwire_frontend_gateway;
grant select on turns_v1 to turnwire_context_assembly, turnwire_llm_gateway, turnwire_ops;
grant select on shown_turns_v1 to turnwire_frontend_gateway;
grant select on open_turns_v1 to turnwire_context_assembly, turnwire_llm_gateway, turnwire_ops;
grant select on purged_v1 to turnwire_context_assembly, turnwire_llm_gateway;
