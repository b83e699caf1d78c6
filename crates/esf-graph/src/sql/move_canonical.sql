UPDATE groups SET canonical_node_id = $1, generation = $2 WHERE group_id = $3 AND generation = $4
