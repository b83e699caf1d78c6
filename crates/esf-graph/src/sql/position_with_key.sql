SELECT number FROM positions WHERE search = $1 AND state_key = $2 AND pruned = 0 ORDER BY number LIMIT 1
