SELECT run_id FROM runs WHERE run_id >= $1 AND run_id <= $2 ORDER BY run_id LIMIT 21
