SELECT task_id FROM tasks WHERE task_id >= $1 AND task_id <= $2 ORDER BY task_id LIMIT 21
