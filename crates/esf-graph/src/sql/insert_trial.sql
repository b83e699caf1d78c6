INSERT INTO trials (sibling, run, ordinal, revision, attempt_id, policy_version, parent_trial, first_step, next_step, owned_from_step,
    node_id, expires_at, boot_id, started_at, created_by, trace_id, status)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8, $9, $10, $11, $12, $13, $14, $15, 'running') RETURNING number
