INSERT INTO attempts (attempt_id, group_id, node_id, purpose, salvaged_from, retry_of, executor,
                      environment_digest, status, private_delta, lease_id, lease_epoch, worker_id, boot_id,
                      priority, lifetime_ms, on_expiry, failure_class, failure_stage, failure_detail,
                      queued_at, started_at, ended_at, created_by, trace_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23,
        $24, $25)
