-- The operators' functions of every schema. Each returns ids, states, counts and times alone.

-- name: now
select turnwire.clock() as now;

-- name: instances
select 'frontend_gateway' as service, i.* from frontend_gateway.op_instances() i
union all select 'ingestion', i.* from ingestion.op_instances() i
union all select 'context_assembly', i.* from context_assembly.op_instances() i
union all select 'llm_gateway', i.* from llm_gateway.op_instances() i;

-- name: outbox_status
select 'ingestion' as service, o.* from ingestion.op_outbox_status() o
union all select 'context_assembly', o.* from context_assembly.op_outbox_status() o
union all select 'llm_gateway', o.* from llm_gateway.op_outbox_status() o;

-- name: outbox_list
select 'ingestion' as service, o.* from ingestion.op_outbox_list(%(max_rows)s::int) o
union all select 'context_assembly', o.* from context_assembly.op_outbox_list(%(max_rows)s::int) o
union all select 'llm_gateway', o.* from llm_gateway.op_outbox_list(%(max_rows)s::int) o
 order by age_s desc limit %(max_rows)s::int;

-- name: outbox_dead
select 'ingestion' as service, o.* from ingestion.op_outbox_dead_list(%(max_rows)s::int) o
union all select 'context_assembly', o.* from context_assembly.op_outbox_dead_list(%(max_rows)s::int) o
union all select 'llm_gateway', o.* from llm_gateway.op_outbox_dead_list(%(max_rows)s::int) o
 order by at desc limit %(max_rows)s::int;

-- name: outbox_of
select 'ingestion' as service, o.*
  from ingestion.op_outbox_of(%(conversation)s::uuid, %(bucket)s::smallint, %(max_rows)s::int) o
union all
select 'context_assembly', o.*
  from context_assembly.op_outbox_of(%(conversation)s::uuid, %(bucket)s::smallint, %(max_rows)s::int) o
union all
select 'llm_gateway', o.*
  from llm_gateway.op_outbox_of(%(conversation)s::uuid, %(bucket)s::smallint, %(max_rows)s::int) o;

-- name: dlq_status
select 'ingestion' as service, d.* from ingestion.op_dlq_status() d
union all select 'context_assembly', d.* from context_assembly.op_dlq_status() d
union all select 'llm_gateway', d.* from llm_gateway.op_dlq_status() d;

-- name: dlq_list
select 'ingestion' as service, d.* from ingestion.op_dlq_list(%(max_rows)s::int) d
union all select 'context_assembly', d.* from context_assembly.op_dlq_list(%(max_rows)s::int) d
union all select 'llm_gateway', d.* from llm_gateway.op_dlq_list(%(max_rows)s::int) d
 order by at desc, id desc limit %(max_rows)s::int;

-- name: dlq_get
select 'ingestion' as service, d.* from ingestion.op_dlq_get(%(id)s::uuid) d
union all select 'context_assembly', d.* from context_assembly.op_dlq_get(%(id)s::uuid) d
union all select 'llm_gateway', d.* from llm_gateway.op_dlq_get(%(id)s::uuid) d;

-- name: dlq_of
select 'ingestion' as service, d.*
  from ingestion.op_dlq_of(%(conversation)s::uuid, %(max_rows)s::int) d
union all
select 'context_assembly', d.*
  from context_assembly.op_dlq_of(%(conversation)s::uuid, %(max_rows)s::int) d
union all
select 'llm_gateway', d.*
  from llm_gateway.op_dlq_of(%(conversation)s::uuid, %(max_rows)s::int) d;

-- name: deliveries
select 'ingestion' as service, d.* from ingestion.op_deliveries(%(event_ids)s::uuid[]) d
union all select 'context_assembly', d.* from context_assembly.op_deliveries(%(event_ids)s::uuid[]) d
union all select 'llm_gateway', d.* from llm_gateway.op_deliveries(%(event_ids)s::uuid[]) d
 order by at;

-- name: leases
select * from llm_gateway.op_leases();

-- name: work
select * from llm_gateway.op_work(%(max_rows)s::int);

-- name: turn_counts
select * from ingestion.op_turn_counts(%(newest)s::int);

-- name: turn_list
select * from ingestion.op_turn_list(%(status)s::text, %(reason)s::text, %(newest)s::int,
                                     %(max_rows)s::int);

-- name: find_turns
select * from ingestion.op_find_turns(%(id)s::uuid, %(key)s::text, %(max_rows)s::int);

-- name: request
select * from ingestion.op_request(%(request)s::uuid);

-- name: turn
select * from ingestion.op_turn(%(turn)s::uuid);

-- name: transitions
select * from ingestion.op_turn_transitions(%(turn)s::uuid);

-- name: acts_on
select * from ingestion.op_acts_on(%(target)s::uuid);

-- name: steps
select * from context_assembly.op_turn_steps(%(turn)s::uuid);

-- name: turn_work
select * from llm_gateway.op_turn_work(%(turn)s::uuid);

-- name: attempts
select * from llm_gateway.op_turn_attempts(%(tenant)s::uuid, %(step_ids)s::uuid[]);

-- name: acts
select 'frontend_gateway' as service, a.* from frontend_gateway.op_acts(%(max_rows)s::int) a
union all select 'ingestion', a.* from ingestion.op_turn_acts(%(max_rows)s::int) a
union all select 'ingestion', a.* from ingestion.op_acts(%(max_rows)s::int) a
union all select 'context_assembly', a.* from context_assembly.op_acts(%(max_rows)s::int) a
union all select 'llm_gateway', a.* from llm_gateway.op_acts(%(max_rows)s::int) a
 order by at desc limit %(max_rows)s::int;

-- name: redrive_ingestion
select ingestion.op_dlq_redrive(%(id)s::uuid, %(actor)s::text) as told;

-- name: redrive_context_assembly
select context_assembly.op_dlq_redrive(%(id)s::uuid, %(actor)s::text) as told;

-- name: redrive_llm_gateway
select llm_gateway.op_dlq_redrive(%(id)s::uuid, %(actor)s::text) as told;

-- name: end_turn
select ingestion.op_end_turn(%(id)s::uuid, %(reason)s::text, %(actor)s::text) as told;

-- name: reap_turn
select ingestion.op_reap_turn(%(id)s::uuid, %(actor)s::text) as told;
