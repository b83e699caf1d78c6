SELECT name FROM tags WHERE node_id = $1 ORDER BY name
