SELECT node_id FROM nodes WHERE parent_id = $1
UNION
SELECT node_id FROM merge_parents WHERE parent_id = $1
