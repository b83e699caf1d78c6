SELECT r.run_id FROM runs r WHERE r.status = 'open' AND r.node_id = $1
UNION ALL
SELECT r.run_id FROM prompts p JOIN runs r ON r.number = p.run WHERE p.node_id = $1 AND r.status = 'open'
UNION ALL
SELECT r.run_id FROM trials t JOIN runs r ON r.number = t.run WHERE t.node_id = $1 AND r.status = 'open'
UNION ALL
SELECT r.run_id FROM steps s JOIN trials t ON t.number = s.trial JOIN runs r ON r.number = t.run
WHERE s.node_after = $1 AND r.status = 'open'
UNION ALL
SELECT r.run_id FROM deliveries d JOIN runs r ON r.number = d.run WHERE d.node_id = $1 AND r.status = 'open'
LIMIT 1
