SELECT node_id FROM nodes WHERE node_id >= $1 AND node_id <= $2 ORDER BY node_id LIMIT 21
