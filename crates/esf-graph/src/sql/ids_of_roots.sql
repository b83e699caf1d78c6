SELECT DISTINCT root_id FROM roots WHERE root_id >= $1 AND root_id <= $2 ORDER BY root_id LIMIT 21
