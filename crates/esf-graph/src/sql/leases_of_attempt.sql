SELECT lease_id, attempt_id, node_id, worker_id, epoch, status, lease_ms, expires_at, boot_id, granted_at,
       ended_at
FROM leases
WHERE attempt_id = $1
ORDER BY number
