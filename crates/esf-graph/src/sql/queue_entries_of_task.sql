SELECT q.entry_id, q.group_id, q.task_id, q.node_id, q.priority, q.status, q.outcome, q.created_at, q.created_by, q.ended_at,
       q.trace_id
FROM queue_entries q WHERE q.task_id = $1 ORDER BY q.number
