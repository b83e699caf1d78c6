INSERT INTO queue_entries (entry_id, group_id, task_id, node_id, priority, status, outcome, goes_on_at, created_at,
                           created_by, ended_at, trace_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
