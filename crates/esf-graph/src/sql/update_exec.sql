UPDATE execs SET status = $1, outcome = $2, exit_code = $3, ended_at = $4 WHERE exec_id = $5 AND status = 'running'
