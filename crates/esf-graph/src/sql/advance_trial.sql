UPDATE trials SET next_step = $1, node_id = $2, least_version = $3, greatest_version = $4, expires_at = $5, boot_id = $6
WHERE number = $7 AND status = 'running'
