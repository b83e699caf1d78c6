UPDATE tasks SET status = $1, integrated_as = $2, reason = $3, ended_at = $4 WHERE task_id = $5
