SELECT n.node_id FROM nodes n
WHERE n.root_id IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM roots r WHERE r.root_id = n.root_id AND r.attrs_id = n.attrs_id)
