SELECT parent_id, parent_count, status, tag_count FROM nodes WHERE node_id = $1
