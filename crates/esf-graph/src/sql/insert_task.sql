INSERT INTO tasks (task_id, group_id, name, goal, base_node_id, base_generation, first_node_id, status, integrated_as,
                   reason, created_at, created_by, ended_at, trace_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
