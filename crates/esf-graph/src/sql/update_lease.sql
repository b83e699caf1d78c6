UPDATE leases SET status = $1, lease_ms = $2, expires_at = $3, ended_at = $4 WHERE lease_id = $5
