SELECT DISTINCT r.node_id FROM rollouts r
JOIN positions l ON l.number = r.leaf
JOIN nodes n ON n.node_id = r.node_id AND n.parent_id = l.node_id
WHERE r.search = $1 AND r.status <> 'selected' AND n.status <> 'pruned'
    AND NOT EXISTS (SELECT 1 FROM positions p WHERE p.node_id = r.node_id AND p.search = r.search)
