UPDATE trials SET status = $1, ended_at = $2 WHERE number = $3 AND status = 'running'
