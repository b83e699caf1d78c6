SELECT p.number FROM positions p LEFT JOIN nodes n ON n.node_id = p.node_id
WHERE p.search = $1 AND p.state_key = $2 AND p.pruned = 0 AND (n.status IS NULL OR n.status <> 'pruned')
ORDER BY p.number LIMIT 1
