SELECT s.search_id, r.rollout_id FROM positions p
JOIN searches s ON s.number = p.search
JOIN rollouts r ON r.search = p.search AND r.status = 'selected' AND r.leaf = p.number
WHERE p.node_id = $1 ORDER BY r.number LIMIT 1
