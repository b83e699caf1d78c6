UPDATE nodes SET tag_count = (SELECT count(*) FROM tags t WHERE t.node_id = $1) WHERE node_id = $1
