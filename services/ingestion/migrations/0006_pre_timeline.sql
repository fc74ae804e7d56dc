-- What the story of one turn is told from: the states it entered, and messages that a plan left out.
--
-- As in 0002: owned by ingestion_reader, so that the row policies bind; arrays of one call are parallel.
set local role ingestion_owner;
set local search_path = ingestion, turnwire, pg_catalog;

grant select on transitions to ingestion_reader;

-- ($1 tenants, $2 turn_ids)
-- States of a turn with the time each was entered, oldest first; the first 64 at most.
create function turn_transitions_v1(tenants uuid[], turn_ids uuid[])
  returns table (tenant_id uuid, turn_id uuid, status text, reason text, at timestamptz)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  select r.tenant_id, r.turn_id, r.status, r.reason, r.at
    from unnest($1, $2) with ordinality as wanted (tenant_id, turn_id, no)
   cross join lateral (
     select x.* from transitions x
      where x.tenant_id = wanted.tenant_id and x.turn_id = wanted.turn_id
      order by x.at limit 64
   ) r
   order by wanted.no, r.at
$$;

-- ($1 tenants, $2 conversation_ids, $3 branch_ids, $4 before_seqs, $5 tokenizers, $6 max_rows)
-- What history_v1 would offer a plan, newest first, without a word of it: ids, sizes and times.
create function history_facts_v1(
  tenants uuid[], conversation_ids uuid[], branch_ids uuid[], before_seqs bigint[],
  tokenizers text[], max_rows int
) returns table (
  tenant_id uuid, conversation_id uuid, message_id uuid, turn_id uuid, seq bigint, role text,
  status text, tokens int, length int, said_at timestamptz
)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  select h.tenant_id, h.conversation_id, h.message_id, h.turn_id, h.seq, h.role, h.status, h.tokens,
         h.length, h.said_at
    from ingestion.history_v1($1, $2, $3, $4, $5, $6) h
$$;

-- ($1 tenants, $2 conversation_ids, $3 branch_ids, $4 before_seqs, $5 max_count)
-- How many messages history_v1 would offer; counting stops at max_count.
create function history_count_v1(
  tenants uuid[], conversation_ids uuid[], branch_ids uuid[], before_seqs bigint[], max_count int
) returns table (tenant_id uuid, conversation_id uuid, branch_id uuid, messages bigint)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  select h.tenant_id, h.conversation_id, h.branch_id, count(*)
    from ingestion.history_v1($1, $2, $3, $4, array_fill(''::text, array[cardinality($1)]), $5) h
   group by h.tenant_id, h.conversation_id, h.branch_id
$$;

-- ($1 tenant, $2 conversation, $3 message_ids, $4 max_characters)
-- How the texts of a conversation's messages begin; nothing of deleted ones.
create function message_excerpts_v1(
  tenant uuid, conversation uuid, message_ids uuid[], max_characters int
) returns table (message_id uuid, excerpt text)
language sql stable security definer set search_path = ingestion, turnwire, pg_catalog
set enable_seqscan = off as $$
  select m.id, left(m.text, $4)
    from unnest($3) as wanted (message_id)
   cross join lateral (
     (select x.id, x.text, x.conversation_id, x.deleted_at from messages x
       where x.tenant_id = $1 and x.id = wanted.message_id limit 1)
     union all
     (select x.id, x.text, x.conversation_id, x.deleted_at from archived_messages x
       where x.tenant_id = $1 and x.id = wanted.message_id limit 1)
     limit 1
   ) m
   where m.conversation_id = $2 and m.text is not null and m.deleted_at is null
$$;
reset role;
set local search_path = ingestion, turnwire, pg_catalog;

alter function turn_transitions_v1(uuid[], uuid[]) owner to ingestion_reader;
alter function history_facts_v1(uuid[], uuid[], uuid[], bigint[], text[], int) owner to ingestion_reader;
alter function history_count_v1(uuid[], uuid[], uuid[], bigint[], int) owner to ingestion_reader;
alter function message_excerpts_v1(uuid, uuid, uuid[], int) owner to ingestion_reader;

revoke all on function
  turn_transitions_v1(uuid[], uuid[]),
  history_facts_v1(uuid[], uuid[], uuid[], bigint[], text[], int),
  history_count_v1(uuid[], uuid[], uuid[], bigint[], int),
  message_excerpts_v1(uuid, uuid, uuid[], int)
from public;

grant execute on function
  turn_transitions_v1(uuid[], uuid[]),
  history_facts_v1(uuid[], uuid[], uuid[], bigint[], text[], int),
  history_count_v1(uuid[], uuid[], uuid[], bigint[], int),
  message_excerpts_v1(uuid, uuid, uuid[], int)
to turnwire_frontend_gateway;
