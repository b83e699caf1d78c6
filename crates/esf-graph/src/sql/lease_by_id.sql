SELECT lease_id, attempt_id, node_id, worker_id, epoch, status, lease_ms, expires_at, boot_id, granted_at,
       ended_at
FROM leases
WHERE lease_id = $1
