SELECT node_id FROM tags WHERE group_id = $1 AND name = $2
