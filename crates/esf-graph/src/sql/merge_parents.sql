SELECT parent_id FROM merge_parents WHERE node_id = $1 ORDER BY position
