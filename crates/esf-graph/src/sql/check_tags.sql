SELECT n.node_id FROM nodes n
WHERE n.tag_count <> (SELECT count(*) FROM tags t WHERE t.node_id = n.node_id)
