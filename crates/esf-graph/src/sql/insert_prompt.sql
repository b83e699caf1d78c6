INSERT INTO prompts (prompt_id, run, ordinal, task, task_digest, task_split, node_id, root_id, seed, size, extra,
    created_at, revision, refills, status, open_siblings)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 0, 0, 'open', $10) RETURNING number
