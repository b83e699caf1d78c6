SELECT parent_id, parent_count, depth, status FROM nodes WHERE node_id = $1
