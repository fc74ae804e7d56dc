-- What other services may read, each with the rights of its readers.
--
-- Owned by ingestion_reader, which does not own the tables, so the row policies bind: a caller
-- sees rows of the tenants its transaction named, whatever it passes. Arrays of one call are
-- parallel: element i of each belongs to the same wanted row.
--
-- "(tenant_id = x) is true" is the same condition, kept away from the primary key's index, which
-- would serve it alone by walking all rows of a tenant.
--
-- Three functions read the head of an index and stop at a LIMIT. The planner cannot know how many
-- rows a row policy lets through, expects next to none, and would rather fetch and sort a whole
-- conversation; so they tell it to keep to the index.
set local role ingestion_owner;
set local search_path = ingestion, turnwire, pg_catalog;

-- ($1 tenants, $2 conversation_ids, $3 branch_ids, $4 before_seqs, $5 tokenizers, $6 max_rows)
-- The one place that decides what is history: messages below before_seq whose turn has ended; of
-- the user all, of the assistant what has text. Newest first per wanted row. Touches about
-- max_rows rows however long the conversation is.
-- A text of up to 2,000 bytes comes along: it stands in the row that is read anyway. A longer one is
-- stored out of line, and is asked for by message_texts_v1 once it is known to be shown.
create function history_v1(
  tenants uuid[], conversation_ids uuid[], branch_ids uuid[], before_seqs bigint[],
  tokenizers text[], max_rows int
) returns table (
  tenant_id uuid, conversation_id uuid, branch_id uuid, message_id uuid, turn_id uuid, seq bigint,
  role text, status text, tokens int, length int, observed_no bigint, said_at timestamptz,
  time_zone text, short_text text
)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
  select wanted.tenant_id, wanted.conversation_id, wanted.branch_id, h.id, h.turn_id, h.seq,
         h.role, h.status, k.tokens, h.length, h.observed_no, h.said_at, h.time_zone, h.short_text
    from unnest($1, $2, $3, $4, $5) with ordinality
         as wanted (tenant_id, conversation_id, branch_id, before_seq, tokenizer, no)
    join branches b on b.tenant_id = wanted.tenant_id and b.conversation_id = wanted.conversation_id
                   and b.id = wanted.branch_id and b.kind in ('main', 'sibling')
   cross join lateral (
     select m.id, m.turn_id, m.seq, m.role, m.status, m.length, m.observed_no, m.said_at, m.time_zone,
            case when m.length <= 2000 then m.text end as short_text
       from messages m
      where (m.tenant_id = wanted.tenant_id) is true
        and m.conversation_id = wanted.conversation_id
        and m.branch_id = wanted.branch_id
        and m.seq < wanted.before_seq
        and (m.role = 'user'
             or (m.status in ('completed', 'partial', 'cancelled') and m.length > 0))
        -- An open turn has a row here and an ended one has none; at most 32 are open.
        and m.turn_id <> all (array(
              select o.turn_id from open_turns o where o.conversation_id = wanted.conversation_id))
      order by m.seq desc
      limit $6
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
      select x.tenant_id, x.id, x.role, x.text from messages x
       where x.tenant_id = wanted.tenant_id and x.id = wanted.message_id and x.text is not null
       limit 1
    ) m on true
$$;

create function turn_texts_v1(tenants uuid[], turn_ids uuid[])
  returns table (tenant_id uuid, turn_id uuid, text text, length bigint, sha256 text, upto text)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog as $$
  select t.tenant_id, t.id, coalesce(m.text, ''), coalesce(t.length, 0), t.sha256, t.upto
    from unnest($1, $2) as wanted (tenant_id, turn_id)
    join lateral (
      select x.* from turns x where x.tenant_id = wanted.tenant_id and x.id = wanted.turn_id limit 1
    ) t on true
    join lateral (
      select y.text from messages y
       where y.tenant_id = t.tenant_id and y.id = t.assistant_message_id limit 1
    ) m on true
$$;

-- The outcome stays readable for 24 hours; turn and conversation are joined as they are now.
create function request_outcomes_v1(tenants uuid[], request_ids uuid[])
  returns table (
    request_id uuid, tenant_id uuid, outcome text, conversation_id uuid, turn_id uuid, problem jsonb,
    seq bigint, status text, title text, policy text, created_at timestamptz
  )
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog as $$
  select o.request_id, o.tenant_id, o.outcome, o.conversation_id, o.turn_id, o.problem,
         t.seq, t.status, c.title, c.policy, c.created_at
    from unnest($1, $2) as wanted (tenant_id, request_id)
    join lateral (
      select x.* from request_outcomes x
       where x.request_id = wanted.request_id and x.tenant_id = wanted.tenant_id
         and (select turnwire.tenants()) @> array[x.tenant_id]
       limit 1
    ) o on true
    left join lateral (
      select y.seq, y.status from turns y
       where y.tenant_id = o.tenant_id and y.id = o.turn_id limit 1
    ) t on true
    left join lateral (
      select z.title, z.policy, z.created_at from conversations z
       where z.tenant_id = o.tenant_id and z.id = o.conversation_id
         and o.outcome in ('accepted', 'replayed')
       limit 1
    ) c on true
$$;

-- One row, or none where the conversation is unknown or somebody else's.
create function conversation_v1(tenant uuid, principal uuid, conversation uuid)
  returns table (
    id uuid, title text, policy text, created_at timestamptz, updated_at timestamptz,
    message_count bigint
  )
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog as $$
  select c.id, c.title, c.policy, c.created_at, c.updated_at, c.next_seq - 1
    from conversations c
   where c.tenant_id = $1 and c.id = $3 and c.principal_id = $2
$$;

-- A page of a principal's conversations, oldest first or newest first, as the list shows them.
-- ``after`` and ``before`` are ids in the order of the list; at most one of them may be given.
-- Raises TW001 where the cursor is no conversation of this principal.
create function conversations_v1(
  tenant uuid, principal uuid, after uuid, before uuid, descending boolean, max_rows int
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
          and (cursor_id is null or (c.created_at, c.id) > (cursor_at, cursor_id))
        order by c.created_at, c.id limit max_rows)
      union all
      (select c.* from conversations c
        where backwards and (c.tenant_id = tenant) is true and c.principal_id = principal
          and (cursor_id is null or (c.created_at, c.id) < (cursor_at, cursor_id))
        order by c.created_at desc, c.id desc limit max_rows)
    ) page
   order by case when descending then page.created_at end desc, case when descending then page.id end desc,
            page.created_at, page.id;
end
$$;

-- A page of a conversation's messages by seq; the cursors work as in conversations_v1. An unknown
-- or foreign conversation has no rows.
create function messages_v1(
  tenant uuid, principal uuid, conversation uuid, after uuid, before uuid, descending boolean,
  max_rows int
) returns table (
  id uuid, role text, content text, seq bigint, status text, reason text, turn_id uuid,
  created_at timestamptz
)
language plpgsql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
declare
  cursor_id constant uuid := coalesce(after, before);
  backwards constant boolean := descending <> (after is null and before is not null);
  cursor_seq bigint;
begin
  perform from conversations c
    where c.tenant_id = tenant and c.id = conversation and c.principal_id = principal;
  if not found then
    return;
  end if;
  if cursor_id is not null then
    select m.seq into cursor_seq from messages m
     where m.tenant_id = tenant and m.id = cursor_id and m.conversation_id = conversation;
    if not found then
      raise exception 'the cursor names nothing in this list' using errcode = 'TW001';
    end if;
  end if;
  return query
  select page.id, page.role, coalesce(page.text, ''), page.seq,
         case when page.role = 'user' then page.status else t.status end,
         case when page.role = 'user' then null else t.reason end,
         page.turn_id, page.created_at
    from (
      (select m.* from messages m
        where not backwards and (m.tenant_id = tenant) is true and m.conversation_id = conversation
          and m.seq > coalesce(cursor_seq, 0)
        order by m.seq limit max_rows)
      union all
      (select m.* from messages m
        where backwards and (m.tenant_id = tenant) is true and m.conversation_id = conversation
          and m.seq < coalesce(cursor_seq, 9223372036854775807)
        order by m.seq desc limit max_rows)
    ) page
    join turns t on t.tenant_id = tenant and t.id = page.turn_id
   order by case when descending then page.seq end desc, page.seq;
end
$$;
reset role;
set local search_path = ingestion, turnwire, pg_catalog;

create view turns_v1 with (security_barrier) as
select tenant_id, id, conversation_id, branch_id, principal_id, status, reason, seq, base_seq,
       user_message_id, assistant_message_id, policy, model, length, sha256, upto, usage, traceparent,
       created_at, started_at, deadline_at, ended_at, options, attempts
  from ingestion.turns;

create view open_turns_v1 with (security_barrier) as
select turn_id, tenant_id, conversation_id, branch_id, state, position, deadline_at, progressed_at
  from ingestion.open_turns;

alter function history_v1(uuid[], uuid[], uuid[], bigint[], text[], int) owner to ingestion_reader;
alter function message_texts_v1(uuid[], uuid[]) owner to ingestion_reader;
alter function turn_texts_v1(uuid[], uuid[]) owner to ingestion_reader;
alter function request_outcomes_v1(uuid[], uuid[]) owner to ingestion_reader;
alter function conversation_v1(uuid, uuid, uuid) owner to ingestion_reader;
alter function conversations_v1(uuid, uuid, uuid, uuid, boolean, int) owner to ingestion_reader;
alter function messages_v1(uuid, uuid, uuid, uuid, uuid, boolean, int) owner to ingestion_reader;
alter view turns_v1 owner to ingestion_reader;
alter view open_turns_v1 owner to ingestion_reader;

revoke all on function
  history_v1(uuid[], uuid[], uuid[], bigint[], text[], int),
  message_texts_v1(uuid[], uuid[]),
  turn_texts_v1(uuid[], uuid[]),
  request_outcomes_v1(uuid[], uuid[]),
  conversation_v1(uuid, uuid, uuid),
  conversations_v1(uuid, uuid, uuid, uuid, boolean, int),
  messages_v1(uuid, uuid, uuid, uuid, uuid, boolean, int)
from public;

grant execute on function
  history_v1(uuid[], uuid[], uuid[], bigint[], text[], int), message_texts_v1(uuid[], uuid[])
to turnwire_context_assembly;
grant execute on function
  turn_texts_v1(uuid[], uuid[]),
  request_outcomes_v1(uuid[], uuid[]),
  conversation_v1(uuid, uuid, uuid),
  conversations_v1(uuid, uuid, uuid, uuid, boolean, int),
  messages_v1(uuid, uuid, uuid, uuid, uuid, boolean, int)
to turnwire_frontend_gateway;
grant select on turns_v1
to turnwire_frontend_gateway, turnwire_context_assembly, turnwire_llm_gateway, turnwire_ops;
grant select on open_turns_v1 to turnwire_context_assembly, turnwire_llm_gateway, turnwire_ops;
