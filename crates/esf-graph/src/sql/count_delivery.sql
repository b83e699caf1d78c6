UPDATE deliveries SET dropped_by = $1, trained_by = $2 WHERE run = $3 AND sequence = $4
