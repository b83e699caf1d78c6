INSERT INTO rollouts (rollout_id, search, ordinal, steps, leaf, stage, wanted, status, outcome_digest, value, reached,
                      node_id, evaluation_id, void_class, void_reason, cost, expires_at, boot_id, selected_at,
                      ended_at, ended, created_by, trace_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'selected', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.0, $8, $9, $10, NULL, NULL,
        $11, $12)
