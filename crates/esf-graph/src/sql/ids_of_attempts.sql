SELECT attempt_id FROM attempts WHERE attempt_id >= $1 AND attempt_id <= $2 ORDER BY attempt_id LIMIT 21
