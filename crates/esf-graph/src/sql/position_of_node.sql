SELECT number FROM positions WHERE node_id = $1 AND search = $2 ORDER BY number LIMIT 1
