SELECT n.node_id FROM nodes n JOIN attempts a ON a.attempt_id = n.attempt_id
WHERE a.node_id <> n.node_id OR a.status NOT IN ('sealed', 'released')
