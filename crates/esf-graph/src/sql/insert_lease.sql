INSERT INTO leases (lease_id, attempt_id, node_id, worker_id, epoch, status, lease_ms, expires_at, boot_id,
                    granted_at, ended_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
