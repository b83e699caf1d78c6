DELETE FROM tags WHERE group_id = $1 AND name = $2 RETURNING node_id
