INSERT INTO deliveries (run, sequence, kind, prompt, sibling, revision, trial, status, cancelled, usable, reward, node_id,
    policy_version_start, policy_version_end, outcome, outcome_digest, at, dropped_by, trained_by)
VALUES ($1, $2, 'sibling', $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, 0, 0)
