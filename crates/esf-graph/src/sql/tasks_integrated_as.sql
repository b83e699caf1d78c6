SELECT t.task_id, t.group_id, t.name, t.goal, t.base_node_id, t.base_generation, t.first_node_id, t.status, t.integrated_as,
       t.reason, t.created_at, t.created_by, t.ended_at, t.trace_id
FROM tasks t WHERE t.integrated_as = $1 ORDER BY t.number
