UPDATE attempts
SET status = $1, private_delta = $2, lease_id = $3, lease_epoch = $4, worker_id = $5, boot_id = $6,
    failure_class = $7, failure_stage = $8, failure_detail = $9, started_at = $10, ended_at = $11
WHERE attempt_id = $12 AND status = $13
