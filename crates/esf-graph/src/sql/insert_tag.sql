INSERT INTO tags (group_id, name, node_id, created_at, created_by) VALUES ($1, $2, $3, $4, $5)
