SELECT sequence FROM deliveries WHERE run = $1 AND sequence = $2 AND kind = 'group' AND prompt = $3
