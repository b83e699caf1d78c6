SELECT g.group_id FROM groups g LEFT JOIN nodes n ON n.node_id = g.canonical_node_id
WHERE n.node_id IS NULL OR n.group_id <> g.group_id OR n.status NOT IN ('sealed', 'terminal')
