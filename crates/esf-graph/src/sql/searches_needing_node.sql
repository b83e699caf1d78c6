SELECT s.search_id FROM positions p JOIN searches s ON s.number = p.search
WHERE p.node_id = $1 AND p.pruned = 0 AND s.status = 'open' AND s.number <> $2 ORDER BY s.number LIMIT 1
