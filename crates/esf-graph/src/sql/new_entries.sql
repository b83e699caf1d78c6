SELECT sequence FROM deliveries WHERE run = $1 AND kind = $2 AND sequence > $3 ORDER BY sequence LIMIT $4
