SELECT exec_id FROM execs WHERE exec_id >= $1 AND exec_id <= $2 ORDER BY exec_id LIMIT 21
