SELECT evaluation_id FROM evaluations WHERE evaluation_id >= $1 AND evaluation_id <= $2 ORDER BY evaluation_id LIMIT 21
