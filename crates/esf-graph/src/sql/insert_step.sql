INSERT INTO steps (trial, ordinal, node_before, node_after, action, observation, reward, elapsed_ms, attempt_id, exec_ids,
    policy_version, arrays, artifacts)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
