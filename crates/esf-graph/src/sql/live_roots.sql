SELECT root_id, attrs_id FROM nodes WHERE status <> 'pruned' AND root_id IS NOT NULL
UNION
SELECT base_root_id, base_attrs_id FROM nodes WHERE status <> 'pruned' AND base_root_id IS NOT NULL
UNION
SELECT r.root_id, r.attrs_id FROM roots r
WHERE NOT EXISTS (SELECT 1 FROM nodes n WHERE n.root_id = r.root_id AND n.attrs_id = r.attrs_id)
