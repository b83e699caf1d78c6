INSERT INTO merge_parents (node_id, position, parent_id) VALUES ($1, $2, $3)
